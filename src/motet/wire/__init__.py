"""Trees to and from bytes: a JSON shape followed by raw arrays. Nothing is ever unpickled."""

from motet.wire.format import check_form, form, pack, size, unpack
from motet.wire.forms import WireError

__all__ = ["WireError", "check_form", "form", "pack", "size", "unpack"]
