"""The form of a tree without its numbers: names, shapes and types, as a tree of plain values.

Knows trees. Does not know what the numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from motet.core import Tree
from motet.vec import Vec

_LARGEST = 1 << 31  # numbers of one tensor


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def outline(tree: Tree, hidden: Callable[[Any], bool] = is_float) -> Tree:
    """The tree's form; leaves that are not `hidden` stay in it as they are.

    >>> outline({"w": torch.zeros(2, 3), "n": 4})
    {'map': {'w': {'shape': [2, 3], 'type': 'float32'}, 'n': {'is': 4}}}
    """
    if isinstance(tree, dict):
        return {"vec" if isinstance(tree, Vec) else "map": {k: outline(v, hidden) for k, v in tree.items()}}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [outline(v, hidden) for v in tree]}
    if not hidden(tree):
        return {"is": tree}
    leaf = torch.as_tensor(tree)
    dtype = leaf.dtype if leaf.is_floating_point() else torch.float32  # as a mean has it
    return {"shape": list(leaf.shape), "type": str(dtype).removeprefix("torch.")}


def from_outline(form: Tree) -> Tree:
    """A tree of this form with zeros, which take no memory; ValueError for what is no form."""
    if not isinstance(form, dict):
        raise ValueError(f"no form of a tree: {form!r:.80}")
    if set(form) == {"shape", "type"}:
        return blank(form["shape"], form["type"])
    ((kind, inside),) = form.items()
    if kind == "is":
        return inside
    if kind in ("map", "vec"):
        found = {k: from_outline(v) for k, v in inside.items()}
        return Vec(found) if kind == "vec" else found
    if kind in ("list", "tuple"):
        items = [from_outline(v) for v in inside]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"no form of a tree: {kind!r:.80}")


def blank(shape: Any, name: Any) -> Tensor:
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    whole = isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)
    if not whole or math.prod(shape) > _LARGEST:
        raise ValueError(f"no shape of a tensor: {shape!r:.80}")
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"no type of numbers: {name!r:.80}")
    return torch.zeros((), dtype=dtype).expand(shape)
