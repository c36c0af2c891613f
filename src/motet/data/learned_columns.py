"""The columns that training rows speak of: categories that only other rows have are no inputs of a network.

Otherwise rows for validation and test would change a network's width, and with it all that is learned.
Knows pools and partitions. Does not know how rows are filled or scaled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from motet.client import Column
from motet.data.build_clients import TRAIN, Partition
from motet.data.federated import Pool

OTHER = "other"  # the category of rare values, and of values that training rows do not have


def with_learned_columns(pool: Pool, partition: Partition) -> tuple[Pool, Partition]:
    """The pool and the partition without flags that are 0 in all training rows; rows of a category that is left out
    are of the category `other`, where there is one."""
    flags = np.array([c.kind == "flag" and (bool(c.group) or is_indicator(c)) for c in pool.columns], bool)
    if not pool.learned_columns or not flags.any():
        return pool, partition
    learned = (partition.part == TRAIN) & ~partition.held[partition.who]
    rows = np.unique(partition.row[learned])
    seen = np.ones(len(pool.columns), bool)
    seen[flags] = (pool.x[np.ix_(rows, np.flatnonzero(flags))] == 1).any(0)
    if seen.all():
        return pool, partition
    x = with_others(pool.x, pool.columns, seen)
    held = None if pool.held is None else pool.held[:, seen]
    columns = tuple(c for c, s in zip(pool.columns, seen, strict=True) if s)
    here = None if partition.columns is None else partition.columns[:, seen]
    notes = [*pool.notes, note(pool.columns, seen)] if note(pool.columns, seen) else pool.notes
    return replace(pool, x=x, columns=columns, held=held, notes=notes), replace(partition, columns=here)


def is_indicator(column: Column) -> bool:
    return column.name.endswith(" is missing")


def with_others(x: np.ndarray, columns: tuple[Column, ...], seen: np.ndarray) -> np.ndarray:
    """The columns that are seen; what is left out of a text column counts as `other`."""
    found = x[:, seen]  # a copy: the pool keeps its own rows
    place = np.cumsum(seen) - 1
    for i, c in enumerate(columns):
        if c.group and c.name == f"{c.group}={OTHER}" and seen[i]:
            left = [j for j, o in enumerate(columns) if o.group == c.group and not seen[j]]
            found[:, place[i]] += x[:, left].sum(1)
    return found


def note(columns: tuple[Column, ...], seen: np.ndarray) -> str:
    """How many categories were left out, without their names."""
    groups = [c.group for c, s in zip(columns, seen, strict=True) if c.group and not s]
    many = ", ".join(f"{groups.count(g)} of {g!r}" for g in dict.fromkeys(groups))
    return f"categories that no training row has are no inputs: {many}" if many else ""
