"""Whether a run was still improving when it stopped, and about how many rounds would do.

Goes by the curve of mean validation scores, larger being better. Knows numpy. Does not know stores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LAST = 1 / 3  # the part of the curve that is looked at
FEWEST = 5  # scores below which nothing is said
QUANTILE = 1.645  # of the normal distribution: one flat curve in twenty is called rising
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # first digits of a round number
MOST = 10  # times the rounds of the run: further than this no fit is believed


def still_improving(scores: Sequence[float], worth: float) -> bool:
    """Whether the last third of the curve rises, by more than chance and by more than `worth`.

    >>> still_improving([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], worth=0.01)
    True
    >>> still_improving([0.1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6], worth=0.01)
    False
    """
    y = np.asarray(scores, dtype=float)
    end = y[-max(FEWEST, round(LAST * len(y))) :]
    if len(end) < FEWEST or not np.isfinite(end).all():
        return False
    early, late = np.triu_indices(len(end), 1)
    rises = end[late] - end[early]
    slope = float(np.median(rises / (late - early)))  # Theil and Sen's, which single rounds do not move
    return slope * (len(end) - 1) > worth and _more_than_chance(rises, len(end))


def _more_than_chance(rises: Floats, many: int) -> bool:
    """Mann and Kendall's test: whether later scores are larger more often than in a random order."""
    more = float(np.sign(rises).sum()) - 1
    return bool(more / np.sqrt(many * (many - 1) * (2 * many + 5) / 18) > QUANTILE)


def rounds_needed(rounds: Sequence[int], scores: Sequence[float], worth: float) -> int | None:
    """After how many rounds the last third of them gains less than `worth`; None if that is very far away.

    `rounds` are counted from 1. A hyperbola continues the curve. Exponentials ended far too early on curves
    that were continued, and the first fifth of a curve is often another regime.

    >>> ends = range(1, 51)
    >>> rounds_needed(ends, [1 - 1 / (1 + r / 10) for r in ends], worth=0.01)
    500
    """
    some = slice(len(rounds) // 5, None)
    r, y = np.asarray(rounds, dtype=float)[some], np.asarray(scores, dtype=float)[some]
    last = float(r[-1])
    fits = [_fit(r, y, time) for time in last * np.geomspace(0.001, 100, 200)]
    _, height, time = min((fit for fit in fits if fit[1] > 0), default=(0.0, 0.0, last))
    ahead = np.arange(last + 1, MOST * last + 1)
    gained = height * (_missing(ahead * (1 - LAST), time) - _missing(ahead, time))
    small = gained <= worth
    return _about(float(ahead[small.argmax()])) if small.any() else None


def _fit(r: Floats, y: Floats, time: float) -> tuple[float, float, float]:
    """Squared error, height and time of the best hyperbola top - height / (1 + r / time) of this time."""
    x = _missing(r, time)
    spread = float(((x - x.mean()) ** 2).sum())
    height = -float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
    rest = y - y.mean() + height * (x - x.mean())
    return float((rest**2).sum()), height, float(time)


def _missing(r: Floats, time: float) -> Floats:
    """The share of the height that is not gained yet."""
    return np.asarray(1 / (1 + r / time), dtype=float)


def _about(number: float) -> int:
    """Rounded up to a number that claims no precision.

    >>> _about(187.2), _about(1020), _about(263)
    (200, 1500, 300)
    """
    size = 10.0 ** (len(str(int(number))) - 1)
    return int(size * next(step for step in STEPS if step * size >= number))
