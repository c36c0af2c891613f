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

from motet.errors import UsageError
from motet.published.manifest import Feature, Kind
from motet.published.text_columns import RARE, Declared, declared_flags, encoded, source_of
from motet.text import nearest

Mechanism = Literal["plain", "noise", "dp"]


def defaults(
    table: Any,
    kinds: Mapping[str, Declared],
    mechanism: Mechanism = "plain",
    epsilon: float = 0.0,
    seed: int = 0,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    *,
    simulated: bool = False,
    rare: int = RARE,
) -> tuple[Feature, ...]:
    """A Feature for each column of `table` (rows, features), with names and kinds from `kinds`, in order. Of a data
    frame the columns that `kinds` names; a column of categories becomes a flag `column=category` for each of them that
    at least `rare` rows have ("category"), or for each that is named. Names of categories leave with the model.

    Only "dp" needs `bounds`, publicly known ranges of numbers. It spends `epsilon` in all, and draws its noise
    from the machine's secure source, not from the `seed`; `simulated` draws it from the `seed`, and protects nobody.

    >>> defaults(np.array([[1.0, 0], [2.0, 1], [9.0, 1]]), {"age": "number", "sex": "flag"})
    (Feature(name='age', kind='number', default=2.0), Feature(name='sex', kind='flag', default=1.0))
    """
    _check_kinds(kinds, public=mechanism == "dp")
    flags = declared_flags(table, kinds, rare)
    x = encoded(table, list(flags))
    if x.ndim != 2 or x.shape[1] != len(flags) or not len(x):
        raise ValueError(f"a table of shape {x.shape} has no {len(flags)} columns of at least one row")
    columns = [(name, kind, x[:, i].astype(np.float64)) for i, (name, kind) in enumerate(flags.items())]
    if mechanism == "dp":
        from motet.published.private_medians import private_middles

        source = seed if simulated else None
        middles: Sequence[float] = private_middles(columns, epsilon, bounds or {}, source)
    else:
        middles = _plain_middles(columns, epsilon if mechanism == "noise" else 0.0, seed)
        middles = _one_category(list(flags), [n for n in kinds if n not in flags], x, middles)
    return tuple(
        Feature(name, kind, float(m), _spread(kind, c, float(m)) if mechanism == "plain" else None)
        for (name, kind, c), m in zip(columns, middles, strict=True)
    )


def _plain_middles(columns: Sequence[tuple[str, Any, Any]], spread: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    return [_middle(kind, c, spread, rng) for _, kind, c in columns]


def _check_kinds(kinds: Mapping[str, Declared], public: bool) -> None:
    """Refuse a word that is no kind: it would be taken for categories, one for each letter. Where defaults are private,
    categories must be `public`: named, and not read off the rows."""
    for name, kind in kinds.items():
        if isinstance(kind, str) and kind not in ("number", "flag", "category"):
            raise UsageError(
                f"column {name!r} is declared as {kind!r}; "
                "expected 'number', 'flag', 'category' or names of categories\n"
                f"hint: {nearest(kind, ['number', 'flag', 'category'])}; or {{{name!r}: ('first', 'second')}}"
            )
    if public:
        _check_public(kinds)


def _check_public(kinds: Mapping[str, Declared]) -> None:
    if found := [n for n, kind in kinds.items() if kind == "category"]:
        raise UsageError(
            f"the categories of {found[0]!r} would be read off the rows, which spends a budget that nobody counts\n"
            f"hint: name them from public knowledge: kinds={{{found[0]!r}: ('first', 'second', …)}}"
        )


def _one_category(
    names: Sequence[str], texts: Sequence[str], x: np.ndarray, middles: Sequence[float]
) -> list[float]:
    """Of each column of text the most frequent category, and no other, is the default."""
    found = list(middles)
    for column in texts:
        places = [k for k, n in enumerate(names) if source_of(n, texts) == column]
        most = max(places, key=lambda k: x[:, k].sum())
        for k in places:
            found[k] = float(k == most)
    return found


def _middle(kind: Kind, column: np.ndarray, epsilon: float, rng: np.random.Generator) -> float:
    known = column[~np.isnan(column)]
    if not len(known):
        return float("nan")  # all values of this column are missing
    if kind == "flag":
        values, counts = np.unique(known, return_counts=True)
        return float(values[counts.argmax()])
    noise = float(rng.normal()) if epsilon else 0.0
    return float(np.median(known)) + noise * epsilon * float(known.std(ddof=1) if len(known) > 1 else 0.0)


def _spread(kind: Kind, column: np.ndarray, middle: float) -> float | None:
    """A power of two above a column's deviation from its middle; None for flags, and where nothing varies."""
    with np.errstate(over="ignore"):
        square = np.mean((column[np.isfinite(column)] - middle) ** 2) if np.isfinite(column).any() else 0.0
    known = kind == "number" and 0 < square < np.inf
    return float(2.0 ** np.ceil(np.log2(square) / 2)) if known else None
