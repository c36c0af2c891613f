"""Whether a run was still improving when it stopped, and about how many rounds would do.

Goes by the curve of mean validation scores, larger being better. Knows numpy and scipy. Does not know stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LAST = 1 / 3  # the part of the curve that is looked at
FEWEST = 5  # scores below which nothing is said
SURE = 0.05  # chance that a flat curve is called rising
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # first digits of a round number
MOST = 10  # times the rounds of the run: further than this no fit is believed


def still_improving(scores: Sequence[float], worth: float) -> bool:
    """Whether the last third of the curve rises, by more than chance and by more than `worth`.

    >>> still_improving([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], worth=0.01)
    True
    >>> still_improving([0.1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6], worth=0.01)
    False
    """
    from scipy import stats

    y = np.asarray(scores, dtype=float)
    end = y[-max(FEWEST, round(LAST * len(y))) :]
    if len(end) < FEWEST or not np.isfinite(end).all() or np.ptp(end) == 0:
        return False
    slope = float(stats.theilslopes(end).slope)
    rises = stats.kendalltau(np.arange(len(end)), end, alternative="greater").pvalue < SURE
    return bool(rises) and slope * (len(end) - 1) > worth


def rounds_needed(rounds: Sequence[int], scores: Sequence[float], worth: float) -> int | None:
    """After how many rounds the last third of them gains less than `worth`; None if that is very far away.

    `rounds` are counted from 1. A hyperbola continues the curve. Exponentials ended far too early on curves
    that were continued, and the first fifth of a curve is often another regime.

    >>> ends = range(1, 51)
    >>> rounds_needed(ends, [1 - 1 / (1 + r / 10) for r in ends], worth=0.01)
    500
    """
    from scipy.optimize import curve_fit

    some = slice(len(rounds) // 5, None)
    r, y = np.asarray(rounds, dtype=float)[some], np.asarray(scores, dtype=float)[some]
    top, span, last = float(y.max()), float(np.ptp(y)) or 1.0, float(r[-1])
    bounds = ([top - span, 0.0, last / 1000], [top + 10 * span, 20 * span, 100 * last])
    try:
        found, _ = curve_fit(_hyperbola, r, y, p0=(top + 0.1 * span, span, last / 3), bounds=bounds)
    except RuntimeError:  # not within the steps allowed
        return None
    ahead = np.arange(last + 1, MOST * last + 1)
    gained = _hyperbola(ahead, *found) - _hyperbola((1 - LAST) * ahead, *found)
    small = gained <= worth
    return _about(float(ahead[small.argmax()])) if small.any() else None


def _hyperbola(r: Floats, top: float, height: float, time: float) -> Any:
    return top - height / (1 + r / time)


def _about(number: float) -> int:
    """Rounded up to a number that claims no precision.

    >>> _about(187.2), _about(1020), _about(263)
    (200, 1500, 300)
    """
    size = 10.0 ** (len(str(int(number))) - 1)
    return int(size * next(step for step in STEPS if step * size >= number))
