"""How the trees of a model that is more than weights are put together again from tensors by name.

A safetensors file holds tensors by name and nothing else. The layout is plain JSON among the file's facts: which
tensor belongs where, and the values that are no tensors.
Knows trees and names. Does not know models or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from motet.core import Tree
from motet.vec import Vec

Layout = dict[str, Any]


def layout_of(tree: Tree, path: tuple[str, ...] = ()) -> Layout:
    """What `rebuilt` needs beside the tensors, whose names are the paths that lead to them.

    >>> layout_of({"a": (1, True)})
    {'dict': [['a', {'list': [{'value': 1}, {'value': True}]}]]}
    """
    if isinstance(tree, Tensor):
        return {"tensor": ".".join(path)}
    if isinstance(tree, dict):
        return {"dict": [[key, layout_of(value, (*path, str(key)))] for key, value in tree.items()]}
    if isinstance(tree, list | tuple):
        return {"list": [layout_of(value, (*path, str(k))) for k, value in enumerate(tree)]}
    return {"value": tree}


def rebuilt(layout: Layout, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree that the layout was made of; lists and tuples become tuples, and dicts of tensors alone become vectors:
    a layout does not tell one from the other, and a vector is a dict too.

    >>> rebuilt(layout_of({"a": (1, True)}), {})
    {'a': (1, True)}
    """
    if "tensor" in layout:
        return tensors[layout["tensor"]]
    if "dict" in layout:
        parts = {key: rebuilt(value, tensors) for key, value in layout["dict"]}
        return Vec(parts) if all(isinstance(part, Tensor) for part in parts.values()) else parts
    if "list" in layout:
        return tuple(rebuilt(value, tensors) for value in layout["list"])
    return layout["value"]
