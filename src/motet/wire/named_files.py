"""Files inside trees: long rows of bytes, such as published models, which a message may name instead of holding.

    small, files = named(tree, FileNames())
    tree = filled(small, lambda name: files[name.sha256])

A file's name is its sha256 and its size, so that who has the bytes needs the name alone.
Knows trees and hashes. Does not know who has which file.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.vec import Vec
from motet.wire.format import FileName

LEAST = 1024  # bytes; what is shorter is sent as it is


def is_file(leaf: Any) -> bool:
    """Whether a leaf is a row of bytes that is worth a name."""
    return isinstance(leaf, Tensor) and leaf.dtype == torch.uint8 and leaf.ndim == 1 and leaf.numel() >= LEAST


class FileNames:
    """Names of files; each tensor is hashed once, as long as it is there."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[weakref.ref[Tensor], FileName]] = {}

    def of(self, file: Tensor) -> FileName:
        there = self.known.get(id(file))
        if there is None or there[0]() is not file:
            name = FileName(sha256(file.numpy().data).hexdigest(), file.numel())
            there = self.known[id(file)] = weakref.ref(file), name
        return there[1]


def named(tree: Any, names: FileNames) -> tuple[Any, dict[str, Tensor]]:
    """The tree with names in place of its files, and the files by their sha256."""
    files: dict[str, Tensor] = {}

    def name_of(leaf: Any) -> Any:
        if not is_file(leaf):
            return leaf
        name = names.of(leaf)
        files[name.sha256] = leaf
        return name

    return _changed(tree, name_of), files


def names_in(tree: Any) -> list[FileName]:
    """The names that a tree holds, each once, in its order."""
    found = pytree.tree_leaves(tree, is_leaf=_is_leaf)
    return list(dict.fromkeys(leaf for leaf in found if isinstance(leaf, FileName)))


def filled(tree: Any, find: Callable[[FileName], Tensor]) -> Any:
    """The tree with files in place of their names."""
    return _changed(tree, lambda leaf: find(leaf) if isinstance(leaf, FileName) else leaf)


def _changed(tree: Any, change: Callable[[Any], Any]) -> Any:
    return pytree.tree_map(change, tree, is_leaf=_is_leaf)


def _is_leaf(tree: Any) -> bool:
    return isinstance(tree, Vec)  # weights of a network hold no files
