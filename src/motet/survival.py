"""Survival: which rows' risks can be compared, how often they are in the right order, and curves of survival.

Targets are one number a row: the time if the event was seen, minus the time if the row is censored.
Knows arrays, and is the only file that imports lifelines. Does not know clients, networks or pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from motet.errors import need

Array = np.ndarray[Any, Any]


def concordance(target: Array, risk: Array) -> float:
    """Harrell's index: the share of the comparable pairs in which the row with the higher risk had its event first;
    equal risks count half. nan where no pair can be compared, or where a risk is no number.

    >>> concordance(np.array([1.0, 2.0, -3.0]), np.array([3.0, 1.0, 2.0]))
    0.6666666666666666
    """
    if not comparable_pairs(target) or not np.isfinite(risk).all():
        return float("nan")
    index = _lifelines().utils.concordance_index(np.abs(target), -risk.astype(np.float64), target > 0)
    return float(index)


def comparable_pairs(target: Array) -> int:
    """How many pairs of rows can be compared: the event of one was seen, and the other was watched for longer, or
    as long and censored."""
    seen, censored = np.sort(target[target > 0]), np.sort(-target[target < 0])
    later = len(seen) - np.searchsorted(seen, seen, "right")
    watched = len(censored) - np.searchsorted(censored, seen, "left")
    return int(later.sum() + watched.sum())


@dataclass(frozen=True)
class SurvivalCurve:
    """An estimate after Kaplan and Meier (1958): steps, a 95 % interval, and how many rows were still watched."""

    times: Array  # (steps,) from 0
    survival: Array  # (steps,) the share without event after each time
    low: Array
    high: Array
    watched: Array  # (rows,) for how long each row was watched, sorted
    rows: int
    events: int

    def at_risk(self, times: Array) -> Array:
        """How many rows were still watched at these times."""
        return np.asarray(self.rows - np.searchsorted(self.watched, times, "left"))


def survival_curve(target: Array) -> SurvivalCurve:
    found = _lifelines().KaplanMeierFitter(alpha=0.05).fit(np.abs(target), target > 0)
    times = found.survival_function_.index.to_numpy(float)
    low, high = found.confidence_interval_.to_numpy(float).T
    survival = found.survival_function_.to_numpy(float)[:, 0]
    return SurvivalCurve(
        times, survival, low, high, np.sort(np.abs(target)), len(target), int((target > 0).sum())
    )


def _lifelines() -> Any:
    need("a model of survival times", "survival", "lifelines")
    import lifelines

    return lifelines
