"""Simulated federations of the stacking paper: which client holds which rows and which columns of a table.

Rows are divided by the splits of motet.data, columns by this file: each client holds a share of the columns, where
flags of one category count as one column. Knows tables and clients. Does not know models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from motet.client import seed_of
from motet.data import splits
from motet.data.federated import Pool
from motet.data.splits import Rows

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Table:
    """A table whose rows and columns are divided among clients."""

    x: Array  # (rows, columns) float32
    y: Array  # (rows,)
    classes: tuple[int, ...]  # () where targets are numbers
    numbers: Array  # (columns,) whether a column holds numbers; the others hold flags
    weight: Array  # (columns,) flags of one category weigh 1 together
    names: tuple[str, ...]  # of the clients
    rows: tuple[Array, ...]  # of each client: places in the table
    holds: Array  # (clients, columns) bool
    same: bool = False  # everyone holds the same rows, in the same order

    @property
    def kind(self) -> str:
        return "classes" if self.classes else "numbers"

    @cached_property
    def numbered(self) -> Any:
        """The values of all columns as whole numbers, for the forests of fast_forest.py."""
        from fast_forest import numbered

        return numbered(self.x)

    @property
    def clients(self) -> range:
        return range(len(self.names))


def divide(pool: Pool, split: str, seed: int, share: float = 1.0, **options: Any) -> Table:
    """A table as `split` (quantity_skew, label_skew, natural, vertical, ...) divides it among clients. With
    `share` below 1 clients differ in their columns, too; if they also differ in rows, the federation is hybrid."""
    owner = None if pool.owner is None else np.asarray(pool.owner)
    all_rows = Rows(np.arange(len(pool.y)), np.asarray(pool.y), seed, owner, pool.names)
    assignment = splits.source(split)(all_rows, **options)
    rows = tuple(assignment.row[assignment.who == k] for k in range(len(assignment.clients)))
    return Table(
        np.asarray(pool.x, np.float32),
        np.asarray(pool.y),
        tuple(range(len(pool.classes))),
        np.array([c.kind == "number" for c in pool.columns]),
        weights(pool),
        assignment.clients,
        rows,
        columns(pool, len(rows), share, seed),
        assignment.same,
    )


def groups(pool: Pool) -> list[str]:
    """What each column counts as: flags of one category are one column."""
    return [c.group or c.name for c in pool.columns]


def weights(pool: Pool) -> Array:
    group = groups(pool)
    return np.array([1 / group.count(g) for g in group])


def columns(pool: Pool, clients: int, share: float, seed: int) -> Array:
    """(clients, columns): int(share columns) columns each, drawn without replacement."""
    group = groups(pool)
    known = sorted(set(group))
    rng = np.random.Generator(np.random.PCG64(seed_of(seed, "columns", share)))
    many = max(int(share * len(known) + 1e-9), 1)
    chosen = [{known[k] for k in rng.permutation(len(known))[:many]} for _ in range(clients)]
    return np.array([[g in mine for g in group] for mine in chosen])


def alike(holds: Array, weight: Array | float = 1.0) -> Array:
    """(clients, clients) Jaccard similarity of the sets of columns."""
    both = (holds * weight) @ holds.T.astype(float)
    sizes = np.diag(both)
    return np.asarray(both / np.maximum(sizes[:, None] + sizes[None, :] - both, 1e-12))
