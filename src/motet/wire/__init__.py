"""Trees to and from bytes: a JSON shape followed by raw arrays. Nothing is ever unpickled."""

from motet.wire.format import FileName, WireError, check_form, form, pack, record, size, unpack
from motet.wire.named_files import LEAST, FileNames, filled, named, names_in

__all__ = [
    "LEAST",
    "FileName",
    "FileNames",
    "WireError",
    "check_form",
    "filled",
    "form",
    "named",
    "names_in",
    "pack",
    "record",
    "size",
    "unpack",
]
