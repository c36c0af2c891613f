"""Mixing before a robust mean: each reply gives way to the mean of those nearest to it.

Allouah et al. 2023, "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
Algorithm 2. Honest clients whose data differ reply with numbers that are far apart by coordinate, and
the middle of those is nobody's model; mixing brings the honest together first, and hostile replies that
are far from most others enter few of the mixtures.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from motet.guard.robust import distances, whole
from motet.guard.rows import Table


class Mixed:
    """Rows as seen after mixing; each has one voice. They are made a slice at a time, and never stored."""

    def __init__(self, rows: Table, hostile: float = 0.2) -> None:
        self.rows, self.width = rows, rows.width
        self.weights = torch.ones_like(rows.weights)
        n = len(rows)
        # Equally near rows come in an order of their contents, so that the rows' own order changes no bit.
        order = torch.tensor(sorted(range(n), key=rows.digest), dtype=torch.int64)
        near = distances(rows)[:, order].argsort(dim=1, stable=True)
        self.near = order[near[:, : max(1, n - whole(hostile, n))]]  # (rows, all but the hostile share)

    def __len__(self) -> int:
        return len(self.rows)

    def slices(self) -> Iterator[Tensor]:
        for block in self.rows.slices():
            wide = block.double()
            yield torch.stack([wide[near].mean(0) for near in self.near])

    def digest(self, row: int) -> bytes:
        return b"".join(self.rows.digest(int(i)) for i in self.near[row])
