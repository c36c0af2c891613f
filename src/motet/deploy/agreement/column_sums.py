"""Sums of columns: what sites say of their numbers, and the means and spreads that a server makes of them.

A site measures each of its own columns once: how many training rows and cells, the sum of the cells, the sum of
squared distances to the site's own mean. The server shifts the squares to the mean of all sites (Chan, Golub
and LeVeque 1979), so it needs no second question with a middle of its choice.
Knows sums and names of columns. Does not know rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from motet.core import Tree
from motet.data.federated import DataError
from motet.data.fill_missing import totals
from motet.deploy.agreement.layout import Layout

Columns = Sequence[tuple[str, str, str]]  # (name, kind, one-hot encoded from)


class ColumnSums(NamedTuple):
    """Numbers by column, each (columns,) float64; the target's come last where numbers are predicted."""

    rows: np.ndarray  # training rows; 0 where nothing is said of the column
    many: np.ndarray  # of these, rows whose cell is not empty
    total: np.ndarray
    squares: np.ndarray  # of distances to the site's own mean

    @classmethod
    def measured(cls, z: np.ndarray) -> ColumnSums:
        """Of rows (n, columns); NaN is an empty cell."""
        some = ~np.isnan(z)
        many, total = totals(z)
        away = np.where(some, z - total / np.maximum(many, 1), 0.0)
        return cls(np.where(many > 0, float(len(z)), 0.0), many, total, (away**2).sum(0))

    @classmethod
    def of(cls, site: str, tree: Tree, columns: int) -> ColumnSums:
        """What a site sent, if it is sums of so many columns."""
        if not isinstance(tree, dict) or not set(cls._fields) <= set(tree):
            raise DataError(f"site {site} sent no sums of its columns")
        found = []
        for name in cls._fields:
            v = tree[name]
            if (
                not isinstance(v, torch.Tensor)
                or v.shape != (columns,)
                or not bool(v.double().isfinite().all())
            ):
                raise DataError(f"site {site} sent no finite number for each of {columns} columns as {name}")
            found.append(v.double().numpy())
        return cls(*found)

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.total / np.maximum(self.many, 1))

    def tree(self) -> Tree:
        return {name: torch.from_numpy(v) for name, v in self._asdict().items()}

    def aligned(self, own: Columns, layout: Layout) -> ColumnSums:
        """The same sums in the layout's columns. A category that is not among the site's is 0 in all of its rows;
        of a column that the site does not hold nothing is said."""
        place = {name: i for i, (name, _, _) in enumerate(own)}
        groups = [group for _, _, group in own]
        found = np.zeros((4, len(layout.columns) + (layout.kind == "numbers")))
        for j, (name, _, group) in enumerate(layout.columns):
            if name in place:
                found[:, j] = [v[place[name]] for v in self]
            elif group and group in groups:
                same = [i for i, g in enumerate(groups) if g == group]
                found[:2, j] = self.rows[same].max(), self.many[same].max()
        if layout.kind == "numbers":
            found[:, -1] = [v[-1] for v in self]
        return ColumnSums(*found)

    def about(self, middle: np.ndarray) -> np.ndarray:
        """Sums of squared distances to another middle."""
        return np.asarray(self.squares + self.many * (self.mean - middle) ** 2)


def combined(layout: Layout, found: Sequence[ColumnSums]) -> Layout:
    """The layout with means and spreads, from what each site says of the layout's columns."""
    rows, many, total = (np.sum([getattr(s, k) for s in found], axis=0) for k in ("rows", "many", "total"))
    middle = total / np.maximum(many, 1)
    return layout.with_means(many, total).with_spread(rows, np.sum([s.about(middle) for s in found], axis=0))


def pooled(layout: Layout, own: Mapping[str, Columns], replies: Mapping[str, Tree]) -> Layout:
    """The layout with means and spreads, from what each site says of its own columns."""
    more = layout.kind == "numbers"
    found = (
        ColumnSums.of(site, tree, len(own[site]) + more).aligned(own[site], layout)
        for site, tree in replies.items()
    )
    return combined(layout, list(found))
