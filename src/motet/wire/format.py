"""The wire format: magic, the length of a JSON header, the header, then raw little-endian arrays.

The header holds the tree's shape and, for each array, its type and dimensions. Reading checks every
length before it is used, so that a damaged or hostile message ends in a WireError and nothing else.
Knows trees and bytes. Does not know who sends what to whom.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import torch
from torch import Tensor

from motet.vec import Vec

MAGIC = b"motet\x001\n"
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    )
}  # fmt: skip
_DEEP = 64  # how deep a tree may nest


class WireError(ValueError):
    """A tree that cannot be sent, or bytes that are no message."""


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


def unpack(message: bytes, limit: int | None = None) -> Any:
    """The tree that `pack` was given; raises WireError for anything else."""
    if limit is not None and len(message) > limit:
        raise WireError(f"a message of {len(message)} bytes is larger than the limit of {limit}")
    start = len(MAGIC) + 8
    if len(message) < start or message[: len(MAGIC)] != MAGIC:
        raise WireError("these bytes are no motet message: the first ones are wrong")
    (length,) = struct.unpack("<Q", message[len(MAGIC) : start])
    if length > len(message) - start:
        raise WireError("the message is cut off inside its header")
    try:
        header = json.loads(message[start : start + length])
        arrays = _arrays(header["arrays"], message, start + length)
        return _build(header["tree"], arrays, 0)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as e:
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
    raise WireError(
        f"cannot send a {type(t).__name__}; send tensors, numbers, text, bytes, and dicts, lists or tuples of them"
    )


def _arrays(kinds: list[dict[str, Any]], message: bytes, at: int) -> list[Tensor | bytes]:
    out: list[Tensor | bytes] = []
    for kind in kinds:
        length = int(kind["bytes"]) if "bytes" in kind else _length(kind)
        if length < 0 or at + length > len(message):
            raise WireError("the message is cut off inside an array")
        piece = message[at : at + length]
        out.append(piece if "bytes" in kind else _tensor(kind, piece))
        at += length
    if at != len(message):
        raise WireError(f"{len(message) - at} bytes follow the end of the message")
    return out


def _length(kind: dict[str, Any]) -> int:
    if kind["dtype"] not in _DTYPES or any(not isinstance(d, int) or d < 0 for d in kind["shape"]):
        raise WireError(f"no such array: {kind}")
    return int(math.prod(kind["shape"])) * _DTYPES[kind["dtype"]].itemsize


def _tensor(kind: dict[str, Any], piece: bytes) -> Tensor:
    dtype = _DTYPES[kind["dtype"]]
    flat = torch.frombuffer(bytearray(piece), dtype=dtype) if piece else torch.empty(0, dtype=dtype)
    return flat.reshape(kind["shape"])


def _build(t: dict[str, Any], arrays: list[Tensor | bytes], depth: int) -> Any:
    if depth > _DEEP:
        raise WireError(f"the message nests deeper than {_DEEP}")
    ((kind, v),) = t.items()
    if kind == "at":
        return arrays[v]
    if kind == "is":
        return v
    if kind in ("vec", "map"):
        inside = {k: _build(x, arrays, depth + 1) for k, x in v.items()}
        return Vec(inside) if kind == "vec" else inside
    if kind in ("tuple", "list"):
        items = [_build(x, arrays, depth + 1) for x in v]
        return tuple(items) if kind == "tuple" else items
    raise WireError(f"unknown kind {kind!r}")
