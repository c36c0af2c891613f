"""Mixing before a robust mean: each reply is replaced by the mean of those nearest to it.

Allouah et al. 2023, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
Algorithm 2. Honest clients whose data differ send replies that are far apart by coordinate, and the median
of those is no client's model. Mixing first brings honest replies closer to each other; hostile replies that
are far from most others enter few of the mixtures. Knows rows. Does not know clients, trees or files.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from motet.guard.reply_rows import ReplyTable
from motet.guard.robust import distances, whole


class Mixed:
    """Reply rows after mixing, all of weight 1. They are made a slice at a time, and never stored.

    They come in the order of the contents of the rows they are made of, so that the order in which
    replies came changes no bit of the result.
    """

    def __init__(self, rows: ReplyTable, hostile: float = 0.2) -> None:
        self.rows, self.width = rows, rows.width
        self.weights = torch.ones_like(rows.weights)
        n = len(rows)
        self.order = torch.tensor(sorted(range(n), key=rows.digest), dtype=torch.int64)
        apart = distances(rows)[self.order][:, self.order]
        near = apart.argsort(dim=1, stable=True)[:, : max(1, n - whole(hostile, n))]
        self.parts = torch.zeros_like(apart).scatter_(1, near, 1.0)  # 1: takes part in the mixture of a row

    def __len__(self) -> int:
        return len(self.rows)

    def slices(self) -> Iterator[Tensor]:
        for block in self.rows.slices():
            yield self.parts @ block[self.order].double() / self.parts.sum(1, keepdim=True)

    def digest(self, row: int) -> bytes:
        return b"".join(self.rows.digest(int(i)) for i in self.order[self.parts[row] > 0])
