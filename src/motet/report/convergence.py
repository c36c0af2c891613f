"""Whether runs were still improving when they stopped, and about how many rounds would do.

Goes by the curve of mean validation scores, larger being better. Knows runs as they are read. Does not know tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import special  # scipy.stats takes seconds to import

from motet.report.certainty import LEVEL, Floats
from motet.report.read import ReportedRun, settings_of
from motet.report.terminal import PERCENT

WORTH = 0.01  # a point, or a hundredth of an error: what a third of the rounds must gain to be worth them
LAST = 1 / 3  # the part of the curve that is looked at
FEWEST = 6  # scores below which nothing is said
MOST_ALIKE = 0.93  # correlation of neighbouring rounds: more cannot be told from a rise
ROUNDING = 1e-20  # of the squares of scores
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)  # first digits of a round number
MOST = 10  # times the rounds of the run: further than this no fit is believed


def needs(group: Sequence[ReportedRun]) -> str:
    """`about 200` or `more than 500` rounds, where the runs were still improving when they stopped; else nothing.

    Goes by the mean curve of the runs that used all their rounds: what patience ended has converged.
    """
    import pandas as pd

    some = [
        run.val for run in group if not run.trouble and len(run.rounds) >= int(run.facts.get("rounds", 0))
    ]
    if not some:
        return ""
    rows = pd.concat(some)
    side = settings_of(group[0]).get("train.by", "personal")
    curve = (
        rows[rows["side"] == ("global" if side == "global" else "personal")].groupby("round")["score"].mean()
    )
    scores, ends = (curve * group[0].better).to_list(), [int(r) + 1 for r in curve.index]
    share = group[0].metric in (*PERCENT, "r2")
    worth = WORTH * (1.0 if share or not scores else abs(scores[-1]))
    if not still_improving(scores, worth):
        return ""
    enough = rounds_needed(ends, scores, worth)
    return f"about {enough:,}" if enough else f"more than {MOST * ends[-1]:,}"


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
    slope = float(
        np.median((end[late] - end[early]) / (late - early))
    )  # Theil and Sen's: single rounds do not move it
    return slope * (len(end) - 1) > worth and _more_than_chance(end)


def _more_than_chance(end: Floats) -> bool:
    """Whether the least-squares slope is above zero, where scores of neighbouring rounds depend on each other.

    Models move little from round to round and are scored on the same rows, so flat curves wander. The noise is taken
    as autoregressive of order one (Cochrane and Orcutt 1949), and its coefficient is corrected for the line taken out.
    """
    many = len(end)
    x = np.arange(many) - (many - 1) / 2
    slope = float(x @ end / (x @ x))
    rest = end - end.mean() - slope * x
    squares = float(rest @ rest)
    if squares <= ROUNDING * float(end @ end):
        return slope > 0
    found = float(rest[1:] @ rest[:-1]) / squares
    rho = float(np.clip(found + (2 + 4 * max(found, 0.0)) / many, 0, MOST_ALIKE))
    alike = rho ** np.abs(np.subtract.outer(x, x))  # (rounds, rounds) correlations
    free = np.eye(many) - 1 / many - np.outer(x, x) / (x @ x)
    error = np.sqrt(squares / np.trace(free @ alike) * float(x @ alike @ x)) / float(x @ x)
    freedom = max(
        many * (1 - rho) / (1 + rho) - 1, 2.0
    )  # of rounds that would say as much and be independent
    return bool(slope > special.stdtrit(freedom, (1 + LEVEL) / 2) * error)


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
