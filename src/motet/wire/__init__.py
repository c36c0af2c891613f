"""Trees to and from bytes: a JSON shape followed by raw arrays. Nothing is ever unpickled."""

from motet.wire.format import WireError, check_form, form, pack, record, size, unpack

__all__ = ["WireError", "check_form", "form", "pack", "record", "size", "unpack"]
