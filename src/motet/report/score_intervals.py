"""How sure one client's score is: an interval by its own test rows.

Accuracy: an interval of a share (Agresti and Coull 1998), of fewer rows where they have weights. Other metrics: a
bootstrap of the client's rows with a fixed generator, where predictions are stored; else it is not known.
Knows predictions.parquet and the metrics of weighted rows. Does not know tables.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from motet.report.certainty import LEVEL
from motet.report.client_outcomes import (
    BY_CLASS,
    CELLS,
    FEWEST,
    FEWEST_OF_CLASS,
    FEWEST_ROWS,
    METRICS,
    RESAMPLES,
    Predicted,
    predictions,
)
from motet.report.read import ReportedRun
from motet.text import ALL_SITES

_UNKNOWN = (float("nan"), float("nan"))


def score_intervals(run: ReportedRun) -> dict[str, tuple[float, float]]:
    """Of each client's personal test score; none of a mean over sites whose scores are masked."""
    if run.hidden:
        return {ALL_SITES: _UNKNOWN}
    rows = run.test[run.test["side"] == "personal"].set_index("client")
    held = predictions(run.folder, "personal")
    if run.metric == "accuracy":
        sizes = {c: found.rows for c, found in held.items() if found.weight is not None}
        return {
            str(c): one_share(float(r["score"]), sizes.get(str(c), int(r["n"]))) for c, r in rows.iterrows()
        }
    return {
        str(c): bootstrapped(held[str(c)], run.metric) if str(c) in held else _UNKNOWN for c in rows.index
    }


def one_share(share: float, rows: float) -> tuple[float, float]:
    """The interval of a share of rows (Agresti and Coull 1998), within 0 and 1.

    >>> [round(v, 3) for v in one_share(0.8, 100)]
    [0.71, 0.867]
    """
    z = float(special.ndtri((1 + LEVEL) / 2))
    many = rows + z * z
    p = (share * rows + z * z / 2) / many
    reach = z * np.sqrt(p * (1 - p) / many)
    return max(0.0, float(p - reach)), min(1.0, float(p + reach))


def bootstrapped(found: Predicted, metric: str) -> tuple[float, float]:
    y, p = found.y, found.p
    counts = np.unique(y, return_counts=True)[1]
    few = (len(counts) < 2 or counts.min() < FEWEST_OF_CLASS) if metric in BY_CLASS else len(y) < FEWEST_ROWS
    if metric not in METRICS or few:
        return _UNKNOWN
    times = int(np.clip(CELLS // len(y), FEWEST, RESAMPLES))
    weights = np.random.default_rng(0).multinomial(len(y), np.full(len(y), 1 / len(y)), times).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.asarray(METRICS[metric](y, p, found.weighted(weights)), dtype=float)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < times / 2:
        return _UNKNOWN
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
