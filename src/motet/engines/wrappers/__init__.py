"""Engines around engines: they count, lose or spoil replies and pass everything else on."""
