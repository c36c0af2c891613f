"""The wire format: magic, the length of a JSON header, the header, then raw little-endian arrays.

The header holds the tree's shape and, for each array, its type and dimensions. Reading checks every
length before it is used and takes no more memory than the message has bytes (and some thirty times its
header), so that a damaged or hostile message ends in a WireError and nothing else. What is
to have a known form is compared with it (`check_form`), and a record of known fields becomes a msgspec Struct
(`record`).
Knows trees and bytes. Does not know who sends what to whom.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from motet.errors import MotetError
from motet.vec import Vec

MAGIC = b"motet\x001\n"
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_DIMS = 32  # of an array
_DEEP = 64  # how deep a tree may nest
_HEADER = 16 << 20  # bytes of a header, in messages from elsewhere
_PLAIN = (int, float, str, bool, type(None))
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_HASH = re.compile(r"[0-9a-f]{64}")
R = TypeVar("R", bound=msgspec.Struct)


class WireError(MotetError, ValueError):
    """A tree that cannot be sent, or bytes that are no message."""


@dataclass(frozen=True)
class FileName:
    """Stands in a tree for a row of bytes that the receiver has, or can ask for."""

    sha256: str
    size: int  # bytes


def pack(tree: Any) -> bytes:
    """The tree as bytes.

    >>> unpack(pack({"loss": 0.5, "who": ("a", b"x")}))
    {'loss': 0.5, 'who': ('a', b'x')}
    """
    header, arrays = _describe(tree)
    parts = [MAGIC, struct.pack("<Q", len(header)), header]
    for a in arrays:
        parts.append(a if isinstance(a, bytes) else _raw(a))
    return b"".join(parts)


def size(tree: Any) -> int:
    """How many bytes `pack` would make, without making them."""
    header, arrays = _describe(tree)
    body = sum(len(a) if isinstance(a, bytes) else a.numel() * a.element_size() for a in arrays)
    return len(MAGIC) + 8 + len(header) + body


def unpack(message: bytes, limit: int | None = None, *, files: bool = False) -> Any:
    """The tree that `pack` was given; raises WireError for anything else.

    `limit` is for messages from elsewhere: the most bytes that are read at all. Names of `files` are read where they
    are expected.
    """
    if not isinstance(message, bytes | bytearray):
        raise WireError(f"a message is bytes, not a {type(message).__name__}")
    if limit is not None and len(message) > limit:
        raise WireError(f"a message of {len(message)} bytes is larger than the limit of {limit}")
    start = len(MAGIC) + 8
    if len(message) < start or message[: len(MAGIC)] != MAGIC:
        raise WireError("these bytes are no motet message: the first ones are wrong")
    (length,) = struct.unpack("<Q", message[len(MAGIC) : start])
    if length > len(message) - start:
        raise WireError("the message is cut off inside its header")
    if limit is not None and length > _HEADER:
        raise WireError(f"the message has a header of {length} bytes; at most {_HEADER} are read")
    try:
        header = json.loads(message[start : start + length])
        arrays = _arrays(header["arrays"], message, start + length)
        return _Builder(arrays, files).whole(header["tree"])
    except _DAMAGE as e:
        raise e if isinstance(e, WireError) else WireError(f"the message's header is damaged: {e}") from e


def _describe(tree: Any) -> tuple[bytes, list[Tensor | bytes]]:
    arrays: list[Tensor | bytes] = []
    shape = _shape(tree, arrays)
    kinds = [
        {"bytes": len(a)} if isinstance(a, bytes) else {"dtype": _name(a), "shape": list(a.shape)}
        for a in arrays
    ]
    return json.dumps({"tree": shape, "arrays": kinds}, separators=(",", ":")).encode(), arrays


def _name(a: Tensor) -> str:
    name = str(a.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise WireError(f"cannot send a tensor of type {a.dtype}; known types are {', '.join(_DTYPES)}")
    return name


def _raw(a: Tensor) -> bytes:
    flat = a.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _shape(t: Any, arrays: list[Tensor | bytes]) -> Any:
    if isinstance(t, Tensor | bytes):
        arrays.append(t)
        return {"at": len(arrays) - 1}
    if isinstance(t, dict):
        if odd := [k for k in t if not isinstance(k, str)]:
            raise WireError(f"cannot send a dict with the key {odd[0]!r}; keys must be text")
        return {"vec" if isinstance(t, Vec) else "map": {k: _shape(v, arrays) for k, v in t.items()}}
    if isinstance(t, tuple | list):
        return {"tuple" if isinstance(t, tuple) else "list": [_shape(v, arrays) for v in t]}
    if isinstance(t, int | float | str | bool) or t is None:
        return {"is": t}
    if isinstance(t, FileName):
        return {"file": [t.sha256, t.size]}
    raise WireError(
        f"cannot send a {type(t).__name__}; "
        "send tensors, numbers, text, bytes, and dicts, lists or tuples of them"
    )


def _arrays(kinds: list[dict[str, Any]], message: bytes, at: int) -> list[Tensor | bytes]:
    """Views of the message become arrays of their own only when all lengths add up."""
    lengths = [_length(kind) for kind in kinds]
    if at + sum(lengths) > len(message):
        raise WireError("the message is cut off inside an array")
    if at + sum(lengths) < len(message):
        raise WireError(f"{len(message) - at - sum(lengths)} bytes follow the end of the message")
    out: list[Tensor | bytes] = []
    for kind, length in zip(kinds, lengths, strict=True):
        piece = bytes(message[at : at + length])
        out.append(piece if "bytes" in kind else _tensor(kind, piece))
        at += length
    return out


def _length(kind: dict[str, Any]) -> int:
    dims = [kind["bytes"]] if "bytes" in kind else kind["shape"]
    known = isinstance(dims, list) and len(dims) <= _DIMS and ("bytes" in kind or kind["dtype"] in _DTYPES)
    if not known or any(type(d) is not int or not 0 <= d < 1 << 48 for d in dims):
        raise WireError(f"no such array: {kind!r:.200}")
    return int(math.prod(dims)) * (1 if "bytes" in kind else _DTYPES[kind["dtype"]].itemsize)


def _tensor(kind: dict[str, Any], piece: bytes) -> Tensor:
    dtype = _DTYPES[kind["dtype"]]
    if dtype is torch.bool and piece and max(piece) > 1:
        raise WireError("an array of truth values holds something else")
    flat = torch.frombuffer(bytearray(piece), dtype=dtype) if piece else torch.empty(0, dtype=dtype)
    return flat.reshape(kind["shape"])


class _Builder:
    """Puts arrays into the tree that a header describes: each once, and in order, as `pack` had them."""

    def __init__(self, arrays: list[Tensor | bytes], files: bool = False) -> None:
        self.arrays, self.files, self.used = arrays, files, 0

    def whole(self, t: dict[str, Any]) -> Any:
        tree = self.build(t, 0)
        if self.used != len(self.arrays):
            raise WireError("the message holds arrays that its tree does not")
        return tree

    def build(self, t: dict[str, Any], depth: int) -> Any:
        if depth > _DEEP:
            raise WireError(f"the message nests deeper than {_DEEP}")
        ((kind, v),) = t.items()
        if kind == "at":
            if type(v) is not int or v != self.used:
                raise WireError("the message names its arrays out of order")
            self.used += 1
            return self.arrays[v]
        if kind == "is" and isinstance(v, _PLAIN):
            return v
        if kind in ("vec", "map"):
            inside = {k: self.build(x, depth + 1) for k, x in v.items()}
            if kind == "map":
                return inside
            if not all(isinstance(x, Tensor) for x in inside.values()):
                raise WireError("a vector of weights holds something that is no array")
            return Vec(inside)
        if kind == "file" and self.files:
            return _file_name(v)
        if kind in ("tuple", "list") and isinstance(v, list):
            items = [self.build(x, depth + 1) for x in v]
            return tuple(items) if kind == "tuple" else items
        raise WireError(f"unknown kind {kind!r:.80}")


def _file_name(v: Any) -> FileName:
    sha256, length = v
    if not (isinstance(sha256, str) and _HASH.fullmatch(sha256)) or type(length) is not int:
        raise WireError(f"no name of a file: {v!r:.120}")
    if not 0 <= length < 1 << 48:
        raise WireError(f"a file is said to have {length} bytes")
    return FileName(sha256, length)


# ---- what was expected ----


def form(tree: Any) -> str:
    """The same for trees of one form, whatever their values.

    >>> form((1, torch.zeros(2))) == form((5, torch.ones(2))) != form((5, torch.ones(3)))
    True
    """
    header = json.loads(_describe(tree)[0])
    return repr((_form(header["tree"]), header["arrays"]))


def check_form(tree: Any, like: Any, *, loose: bool = False) -> None:
    """Raise WireError unless a tree has the form of another one: the same names, types and sizes of arrays.

    With `loose`, arrays may differ in their sizes, not in their number of dimensions. Text, bytes and numbers
    need only be of the same type.
    """
    header, wanted = json.loads(_describe(tree)[0]), json.loads(_describe(like)[0])
    if _form(header["tree"]) != _form(wanted["tree"]):
        raise WireError("the tree is of another form than was expected")
    got, want = header["arrays"], wanted["arrays"]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        sizes = ("bytes",) if "bytes" in b else ("dtype", "shape")
        same = set(a) == set(b) and all(_size(a[k], loose) == _size(b[k], loose) for k in sizes)
        if not same:
            raise WireError(f"array {i} is {a!r:.120}; expected {b!r:.120}")


def _form(t: dict[str, Any], depth: int = 0) -> Any:
    """What a header says of a tree, without values."""
    if depth > _DEEP:
        raise WireError(f"the message nests deeper than {_DEEP}")
    ((kind, v),) = t.items()
    if kind == "is":
        return type(v)
    if kind in ("vec", "map"):
        return kind, {k: _form(x, depth + 1) for k, x in v.items()}
    if kind == "file" or not isinstance(v, list):
        return kind
    return kind, [_form(x, depth + 1) for x in v]


def _size(v: Any, loose: bool) -> Any:
    """Of bytes any length will do; of an array its dimensions, or with `loose` how many there are."""
    if isinstance(v, list):
        return len(v) if loose else v
    return v if isinstance(v, str) else None


# ---- records ----


def record(tree: Any, kind: type[R], what: str) -> R:
    """The record that a tree holds: all of its fields and no others, each of its type; else a WireError."""
    if not isinstance(tree, dict) or set(tree) != set(kind.__struct_fields__):
        fields = ", ".join(kind.__struct_fields__)
        raise WireError(f"this is no {what}: it must have exactly the fields {fields}")
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, *_DAMAGE) as e:
        why, _, where = str(e).partition(" - at `$.")
        raise WireError(f"this is no {what}: {where.rstrip('`') + ': ' if where else ''}{why:.200}") from e
