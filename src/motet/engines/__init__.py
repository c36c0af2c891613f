"""Engines answer asks: they alone know where clients live."""
