"""The one mean: a weighted sum of replies in a fixed order, added up as the replies come.

Knows trees and weights. Of clients it knows names, for means that speak of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.core import Client, Tree

_LEAF = pytree.tree_structure(0)  # of a tree that is one tensor


class ReplyMean(Protocol):
    """Makes one mean of the replies to an ask; guards have means of their own."""

    @property
    def weight(self) -> float:
        """Of all replies so far; 0 if there is none."""

    def add(self, reply: Tree, weight: float, client: Client = "") -> None: ...
    def add_stacked(self, replies: Tree, weights: Tensor, clients: Sequence[Client] = ()) -> None: ...
    def mean(self) -> Tree: ...


class RunningMean:
    """Adds replies up one by one, or many stacked ones at once, in double precision."""

    def __init__(self) -> None:
        self.spec: Any = None
        self.sums: list[Tensor] = []
        self.dtypes: list[torch.dtype] = []
        self.weight = 0.0

    def add(self, reply: Tree, weight: float, client: Client = "") -> None:
        if isinstance(reply, Tensor) and (self.spec is None or self.spec is _LEAF):
            if self.sums:  # as below, but faster for small replies
                self.sums[0].add_(reply, alpha=weight)
            else:
                self.spec = _LEAF
                self._begin([reply.double() * weight], [reply])
            self.weight += weight
            return
        values = [torch.as_tensor(v) for v in self._flat(reply)]
        if self.sums:
            for total, v in zip(self.sums, values, strict=True):
                total.add_(v, alpha=weight)
        else:
            self._begin([v.double() * weight for v in values], values)
        self.weight += weight

    def add_stacked(self, replies: Tree, weights: Tensor, clients: Sequence[Client] = ()) -> None:
        """Replies stacked along a first axis, one weight for each."""
        values = self._flat(replies)
        terms = [torch.tensordot(weights, v.double(), dims=1) for v in values]
        if not self.sums:
            self._begin([torch.zeros_like(t) for t in terms], values)
        for total, term in zip(self.sums, terms, strict=True):
            total.add_(term)
        self.weight += float(weights.sum())

    def partial(self) -> tuple[Tree, list[torch.dtype], float]:
        """The sum so far, which another mean can add."""
        tree = self.sums[0] if self.spec is _LEAF else pytree.tree_unflatten(self.sums, self.spec)
        return tree, self.dtypes, self.weight

    def add_partial(self, sums: Tree, dtypes: list[torch.dtype], weight: float) -> None:
        """The sum of another mean, whose replies have the same form."""
        values = self._flat(sums)
        if self.sums:
            for total, v in zip(self.sums, values, strict=True):
                total.add_(v)
        else:
            self.sums, self.dtypes = values, dtypes
        self.weight += weight

    def mean(self) -> Tree:
        values = [(s / self.weight).to(d) for s, d in zip(self.sums, self.dtypes, strict=True)]
        return values[0] if self.spec is _LEAF else pytree.tree_unflatten(values, self.spec)

    def _flat(self, tree: Tree) -> list[Any]:
        values, spec = ([tree], _LEAF) if isinstance(tree, Tensor) else pytree.tree_flatten(tree)
        if self.spec is not None and spec != self.spec:
            raise TypeError(f"replies to be averaged differ in shape: {spec} after {self.spec}")
        self.spec = spec
        return values

    def _begin(self, zeros: list[Tensor], values: list[Tensor]) -> None:
        self.sums = zeros
        self.dtypes = [v.dtype if v.is_floating_point() else torch.float32 for v in values]
