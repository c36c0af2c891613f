"""The four hospitals with FLamby's ten columns alone, and all patients: what the other three columns are worth.

Knows the names of the columns. Does not know how they are used.
"""

from __future__ import annotations

from dataclasses import replace

from motet.data.federated import Pool
from motet.data.sets import heart

_DROPPED = ("slope", "ca", "thal")


def load() -> Pool:
    """All rows of `heart` without slope, ca and thal."""
    pool = heart.load()
    kept = [i for i, c in enumerate(pool.columns) if (c.group or c.name) not in _DROPPED]
    held = pool.held[:, kept] if pool.held is not None else None
    return replace(pool, x=pool.x[:, kept], columns=tuple(pool.columns[i] for i in kept), held=held)
