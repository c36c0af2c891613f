"""Default values that a client publishes with its model, for users whose rows lack a feature.

- plain: median of numbers, most frequent value of flags.
- noise: median + N(0, std * epsilon), Cantu-Cervini 2024 section 4.3; the larger epsilon, the more noise. It
  proves no privacy.
- dp: differentially private by OpenDP; the smaller epsilon, the more noise.

Knows columns of numbers. Does not know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from motet.published.framed_models import numbers_of
from motet.published.manifest import Feature, Kind

Mechanism = Literal["plain", "noise", "dp"]


def defaults(
    table: Any,
    kinds: Mapping[str, Kind],
    mechanism: Mechanism = "plain",
    epsilon: float = 0.0,
    seed: int = 0,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    *,
    simulated: bool = False,
) -> tuple[Feature, ...]:
    """A Feature for each column of `table` (rows, features), with names and kinds from `kinds`, in order. Of a data
    frame the columns that `kinds` names.

    Only "dp" needs `bounds`, publicly known ranges of numbers. It spends `epsilon` in all, and draws its noise
    from the machine's secure source, not from the `seed`; `simulated` draws it from the `seed`, and protects nobody.

    >>> defaults(np.array([[1.0, 0], [2.0, 1], [9.0, 1]]), {"age": "number", "sex": "flag"})
    (Feature(name='age', kind='number', default=2.0), Feature(name='sex', kind='flag', default=1.0))
    """
    table = numbers_of(table, list(kinds))
    if table.ndim != 2 or table.shape[1] != len(kinds) or not len(table):
        raise ValueError(f"a table of shape {table.shape} has no {len(kinds)} columns of at least one row")
    columns = [(name, kind, table[:, i].astype(np.float64)) for i, (name, kind) in enumerate(kinds.items())]
    if mechanism == "dp":
        from motet.published.private_medians import private_middles

        middles: Sequence[float] = private_middles(
            columns, epsilon, bounds or {}, seed if simulated else None
        )
    else:
        rng = np.random.default_rng(seed)
        spread = epsilon if mechanism == "noise" else 0.0
        middles = [_middle(kind, c, spread, rng) for _, kind, c in columns]
    return tuple(Feature(name, kind, float(m)) for (name, kind, _), m in zip(columns, middles, strict=True))


def _middle(kind: Kind, column: np.ndarray, epsilon: float, rng: np.random.Generator) -> float:
    known = column[~np.isnan(column)]
    if not len(known):
        return float("nan")  # all values of this column are missing
    if kind == "flag":
        values, counts = np.unique(known, return_counts=True)
        return float(values[counts.argmax()])
    noise = float(rng.normal()) if epsilon else 0.0
    return float(np.median(known)) + noise * epsilon * float(known.std(ddof=1) if len(known) > 1 else 0.0)
