"""How sure the mean gain of these very clients is, by their own test rows.

`certainty.interval` speaks of all clients that there could be: one hospital in six whose majority class is hard to
beat makes it wide. Whether models beat a constant is a question about these models and these clients. So the rows
of every client are resampled for themselves; clients stay as they are. A client with one row has no spread of its
own and borrows that of the others. What trainings add is added.
Knows pairs of runs and their predictions. Does not know tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from motet.report.certainty import LEVEL, Floats, Interval
from motet.report.client_outcomes import (
    Compared,
    Measure,
    compared,
    measure_of,
    overlap,
    resampled,
    rows_that_count,
)
from motet.report.gains import Pair, gain_frame, mean_gain
from motet.report.read import ReportedRun

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 200  # of a client's rows: enough for a variance
FEWEST_IN_ALL = 10  # test rows of all clients together; of survival, events
FEWEST_IN_A_SPLIT = 2  # test rows of a client: with fewer, its rows have no spread


def gain_of_these(some: Sequence[Pair]) -> Interval:
    """The mean gain of these clients; by the spread between clients where their rows are not known."""
    frame, run = gain_frame(some), some[0].run if some else None
    units = compared(some)
    measure = measure_of(run) if run else None
    rows_known = bool(units) and all(one.rows is not None for one in units.values())
    if run is None or measure is None or not rows_known:
        return mean_gain(frame)
    return _by_rows(list(units.values()), run, measure, frame)


def _by_rows(units: Sequence[Compared], run: ReportedRun, measure: Measure, frame: pd.DataFrame) -> Interval:
    many = np.array([rows_that_count(one.rows or {}, run.metric, one.share) for one in units])
    means = frame.groupby("unit", sort=False)["gain"].mean().to_numpy(dtype=float)
    mean = float(means.mean())
    drawn = _drawn(units, run, measure)  # (units, resamples)
    if many.sum() < FEWEST_IN_ALL or not np.isfinite(drawn).any(1).all():
        return Interval(mean, float("nan"), float("nan"), len(units))
    variances = np.nanvar(drawn, axis=1) * many / np.maximum(many - 1, 1)
    few = np.array([_rows_in_a_split(one, run.metric) for one in units]) < FEWEST_IN_A_SPLIT
    variances, freedoms = _borrowed(variances, many, few, means) if few.any() else (variances, many - 1)
    reach = _reach(variances / len(units) ** 2, np.maximum(freedoms, 1), *trainings(frame))
    return Interval(mean, mean - reach, mean + reach, len(units))


def _rows_in_a_split(one: Compared, metric: str) -> float:
    rows = one.rows or {}
    return rows_that_count(rows, metric, 0) / len(rows)


def _borrowed(variances: Floats, many: Floats, few: Any, means: Floats) -> tuple[Floats, Floats]:
    """Variances and their degrees of freedom, where some clients have too few rows for one of their own: a single row
    drawn again is the same row. They have the variance of a row that the other clients have on average, and that
    their own distances to the mean of all clients tell of. They share it: it counts as one, the last."""
    squares = np.append((variances * many)[~few], (many * (means - means.mean()) ** 2)[few].sum())
    votes = max(min(int(few.sum()), len(means) - 1), 1)
    of_a_row = float(squares.sum()) / (int((~few).sum()) + votes)
    free = np.append(np.maximum(many[~few] - 1, 1), votes)
    freedom = float(squares.sum()) ** 2 / max(float((squares**2 / free).sum()), 1e-300)
    lent = np.maximum(variances, of_a_row / np.maximum(many, 1))[few].sum()
    return np.append(variances[~few], lent), np.append(many[~few] - 1, freedom)


def _reach(variances: Floats, freedoms: Floats, of_trainings: float, free: float) -> float:
    """Half of the interval, with degrees of freedom by Satterthwaite."""
    total = float(variances.sum()) + of_trainings
    if total == 0:
        return 0.0
    freedom = total**2 / (float((variances**2 / freedoms).sum()) + of_trainings**2 / free)
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(total))


def _drawn(units: Sequence[Compared], run: ReportedRun, measure: Measure) -> Floats:
    """Gains of every unit in resamples of its own rows, about its gain; nan where a resample has none."""
    draw, found = np.random.default_rng(0), []
    for one in units:
        gains = resampled(one.rows or {}, measure, run.better, draw, RESAMPLES)
        found.append((gains[1:] - gains[0]) * overlap(one.rows or {}, one.share))
    return np.stack(found)


def trainings(frame: pd.DataFrame) -> tuple[float, float]:
    """What trainings add to the variance of the mean gain, and its degrees of freedom."""
    each = frame.groupby(["split", "seed"])["gain"].mean().to_numpy(dtype=float)
    return (float(each.var(ddof=1)) / len(each), len(each) - 1.0) if len(each) > 1 else (0.0, 1.0)
