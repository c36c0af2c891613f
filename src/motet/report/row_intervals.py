"""How sure the mean gain of these very clients is, by their own test rows.

`certainty.interval` speaks of all clients that there could be: one hospital in six whose majority class is hard to
beat makes it wide. Whether models beat a constant is a question about these models and these clients. So the rows
of every client are resampled for themselves; clients stay as they are. What trainings add is added.
Knows pairs of runs and their predictions. Does not know tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    variances = np.nanvar(drawn, axis=1) / len(units) ** 2 * many / np.maximum(many - 1, 1)
    reach = _reach(variances, np.maximum(many - 1, 1), *trainings(frame))
    return Interval(mean, mean - reach, mean + reach, len(units))


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
