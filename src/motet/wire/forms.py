"""Forms of messages: what their headers must be like, whatever the values.

Knows headers, as format.py writes them. Does not know arrays, nor who expects what.
"""

from __future__ import annotations

from typing import Any

from motet.errors import MotetError

DEEP = 64  # how deep a tree may nest


class WireError(MotetError, ValueError):
    """A tree that cannot be sent, or bytes that are no message."""


def compare(header: dict[str, Any], wanted: dict[str, Any], loose: bool) -> None:
    """Refuse a message whose header describes something of another form."""
    if shape(header["tree"]) != shape(wanted["tree"]):
        raise WireError("the tree is of another form than was expected")
    got, want = header["arrays"], wanted["arrays"]
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        sizes = ("bytes",) if "bytes" in b else ("dtype", "shape")
        same = set(a) == set(b) and all(_size(a[k], loose) == _size(b[k], loose) for k in sizes)
        if not same:
            raise WireError(f"array {i} is {a!r:.120}; expected {b!r:.120}")


def shape(t: dict[str, Any], depth: int = 0) -> Any:
    """A tree's shape without its values."""
    if depth > DEEP:
        raise WireError(f"the message nests deeper than {DEEP}")
    ((kind, v),) = t.items()
    if kind == "is":
        return type(v)
    if kind in ("vec", "map"):
        return kind, {k: shape(x, depth + 1) for k, x in v.items()}
    return (kind, [shape(x, depth + 1) for x in v]) if isinstance(v, list) else kind


def _size(v: Any, loose: bool) -> Any:
    """Of bytes any length will do; of an array its dimensions, or with `loose` how many there are."""
    if isinstance(v, list):
        return len(v) if loose else v
    return v if isinstance(v, str) else None
