"""A mean that sees every reply: it gathers them all, and makes one robust mean of them at the end.

Knows trees and weights. Does not know clients, or how the rows are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.core import Client, Tree
from motet.guard.mixing import Mixed
from motet.guard.reply_rows import MEMORY, ReplyRows, ReplyTable
from motet.guard.robust import krum, median, trimmed

Robust = Callable[[ReplyTable], Tensor]


def robust_mean(
    name: str, trim: float = 0.2, hostile: float = 0.2, many: int = 0, mix: bool = False
) -> Robust:
    """A robust mean by its name in a recipe; Krum, which compares whole replies itself, is never mixed."""
    means: dict[str, Robust] = {
        "median": median,
        "trimmed": partial(trimmed, share=trim),
        "krum": partial(krum, hostile=hostile, many=many),
    }
    return partial(after_mixing, means[name], hostile) if mix and name != "krum" else means[name]


def after_mixing(robust: Robust, hostile: float, rows: ReplyTable) -> Tensor:
    return robust(Mixed(rows, hostile)) if rows.width else robust(rows)


class GatheredMean:
    """Takes replies one by one, or many stacked ones at once; all have the first one's tree."""

    def __init__(self, robust: Robust, memory: int = MEMORY) -> None:
        self.robust, self.rows = robust, ReplyRows(memory)
        self.spec: Any = None
        self.shapes: list[torch.Size] = []
        self.dtypes: list[torch.dtype] = []

    @property
    def weight(self) -> float:
        return float(self.rows.weights.sum())

    def add(self, reply: Tree, weight: float, client: Client = "") -> None:
        values, spec = pytree.tree_flatten(reply)
        self._take([torch.as_tensor(v)[None] for v in values], spec, torch.tensor([float(weight)]))

    def add_stacked(self, replies: Tree, weights: Tensor, clients: Sequence[Client] = ()) -> None:
        """Replies stacked along a first axis, one weight for each."""
        self._take(*pytree.tree_flatten(replies), weights)

    def mean(self) -> Tree:
        try:
            row = self.robust(self.rows)
        finally:
            self.rows.close()
        parts = row.split([s.numel() for s in self.shapes])
        shaped = zip(parts, self.shapes, self.dtypes, strict=True)
        return pytree.tree_unflatten([p.reshape(s).to(d) for p, s, d in shaped], self.spec)

    def _take(self, values: list[Tensor], spec: Any, weights: Tensor) -> None:
        shapes = [v.shape[1:] for v in values]
        if self.spec is None:
            self.spec, self.shapes = spec, shapes
            self.dtypes = [v.dtype if v.is_floating_point() else torch.float32 for v in values]
        if spec != self.spec or shapes != self.shapes:
            raise TypeError(
                f"replies to be averaged differ in shape: {spec}, {shapes} after {self.spec}, {self.shapes}"
            )
        exact = all(v.is_floating_point() and v.dtype.itemsize <= 4 for v in values)
        flat = [v.reshape(len(weights), -1).to(torch.float32 if exact else torch.float64) for v in values]
        self.rows.add(torch.cat(flat, 1) if flat else torch.empty(len(weights), 0), weights)
