"""Trees to and from bytes: a JSON shape followed by raw arrays. Nothing is ever unpickled."""

from motet.wire.format import WireError, pack, size, unpack

__all__ = ["WireError", "pack", "size", "unpack"]
