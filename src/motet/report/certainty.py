"""How sure a difference is: intervals and tests, on plain arrays.

The unit is a client. `interval` estimates the mean gain of the population that the clients are drawn from,
with the training repeated: clients vary, and so do trainings (splits, else seeds), which all clients of one
training share. Bootstraps were measured and do not reach 95 %: percentile intervals hold about 92 % with six
clients, and no resampling of two or three trainings knows how much trainings vary. So the variance is put
together from its components, with degrees of freedom by Satterthwaite, and skewed gains lengthen the longer
tail (Hall 1992). Nothing is drawn at random. Knows numpy and scipy. Does not know stores or methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special  # scipy.stats takes seconds to import

Floats = NDArray[np.float64]
LEVEL = 0.95  # of intervals; tests are held against the rest
LEAST = 0.8  # of the variance of units: where trainings seem to vary less than by chance, no less than this
FURTHEST = 2.0  # times Student's quantile: how far skewed gains may stretch one side
ROUNDING = 1e-9  # of a mean: gains that differ by less are equal
FEWEST_EQUAL = 6  # units: fewer that gain the same, by a row or two, are no proof
EXACT = 200  # most units for which the signed-rank test counts all signs; more are normal enough


@dataclass(frozen=True)
class Interval:
    """A mean over units, and where the population's mean lies with LEVEL; nan where that is not known."""

    mean: float
    low: float
    high: float
    units: int

    @property
    def above(self) -> bool:
        return self.low > 0

    @property
    def below(self) -> bool:
        return self.high < 0


def interval(
    gains: Sequence[float], units: Sequence[Any], trainings: Sequence[Any], level: float = LEVEL
) -> Interval:
    """The mean gain over units, each the mean of its own gains, with its interval.

    >>> found = interval([1.0, 2.0, 3.0], ["a", "b", "c"], [0, 0, 0])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    x, (u, many) = np.asarray(gains, dtype=float), _numbered(units)
    each = _means(x, u, many)
    mean = float(each.mean()) if many else float("nan")
    same = many > 0 and np.ptp(each) <= ROUNDING * abs(mean)
    # gains of 0 throughout are the interval 0 to 0; gains of a client that cancel over trainings are not
    if many < 2 or (same and x.any() and (many < FEWEST_EQUAL or mean == 0)):
        return Interval(mean, float("nan"), float("nan"), many)
    variance, freedom = _variance(x, u, each, *_numbered(trainings))
    quantile = float(special.stdtrit(freedom, (1 + level) / 2))
    below, above = _reach(each, quantile)
    error = float(np.sqrt(variance))
    return Interval(mean, mean - below * error, mean + above * error, many)


def together(many: int) -> float:
    """The level of each of so many intervals with which all of them hold at once with LEVEL (Bonferroni).

    >>> round(together(1), 4), round(together(5), 4)
    (0.95, 0.99)
    """
    return 1 - (1 - LEVEL) / max(many, 1)


def _variance(x: Floats, u: Any, each: Floats, c: Any, trainings: int) -> tuple[float, float]:
    """The variance of the mean and its degrees of freedom: of units, and what trainings add to it."""
    many, mean = len(each), each.mean()
    of_units = float(each.var(ddof=1)) / many
    if trainings < 2:
        return of_units, many - 1.0
    weights = 1 / (many * np.bincount(u))[u]
    sums = np.bincount(c, weights * (x - mean), trainings)
    of_trainings = float((sums**2).sum()) * trainings / (trainings - 1)
    noise, free = _noise(x, u, each, c, trainings)
    total = max(of_units + of_trainings - noise, LEAST * of_units)
    if of_trainings <= noise:
        return total, many - 1.0
    parts = of_units**2 / (many - 1) + of_trainings**2 / (trainings - 1) + noise**2 / free
    # a difference of variances can bring Satterthwaite's formula near 0; no part of it has fewer than the least
    return total, max(total**2 / parts, min(many, trainings) - 1.0)


def _noise(x: Floats, u: Any, each: Floats, c: Any, trainings: int) -> tuple[float, int]:
    """What trainings would differ by if they had no effect of their own, and its degrees of freedom."""
    many = len(each)
    free = len(x) - many - trainings + 1
    if len(set(zip(u.tolist(), c.tolist(), strict=True))) == many or free < 1:
        # every training has units of its own
        return float(each.var(ddof=1)) / many, max(1, many - trainings)
    rest = x - each[u] - _means(x, c, trainings)[c] + each.mean()
    return float((rest**2).sum()) / free / len(x), free


def _reach(each: Floats, quantile: float) -> tuple[float, float]:
    """How many standard errors the interval reaches down and up; further on the side of a long tail.

    Hall's transformation is too short where gains are not skewed, Student's quantile where they are.
    """
    many, sd = len(each), float(each.std(ddof=1))
    if many < 3 or sd == 0:
        return quantile, quantile
    skew = many / ((many - 1) * (many - 2)) * float((((each - each.mean()) / sd) ** 3).sum())
    chance = np.sqrt(6 * many * (many - 1) / ((many - 2) * (many + 1) * (many + 3)))  # standard error of skew
    if abs(skew) < chance:
        return quantile, quantile
    root = np.sqrt(many)

    def bent(t: float) -> float:
        return float(root * 3 / skew * (np.cbrt(1 + skew * (t / root - skew / (6 * many))) - 1))

    ends = bent(quantile), -bent(-quantile)
    below, above = (float(np.clip(end, quantile, FURTHEST * quantile)) for end in ends)
    return below, above


def _numbered(names: Sequence[Any]) -> tuple[Any, int]:
    """0, 1, … for different names, and how many there are."""
    places: dict[Any, int] = {}
    numbers = np.array([places.setdefault(name, len(places)) for name in names], dtype=int)
    return numbers, len(places)


def _means(x: Floats, groups: Any, many: int) -> Floats:
    return np.asarray(np.bincount(groups, x, many) / np.bincount(groups, minlength=many), dtype=float)


# ---- tests ----


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; zeros are ranked and then left out (Pratt 1959).

    Exact, ties included, up to EXACT units: all ways to draw signs are counted.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), signed_rank([0.0, 0.0])
    (0.03125, 1.0)
    """
    d = np.asarray(differences, dtype=float)
    ranks = _ranks(np.abs(d))[d != 0]
    signs = np.sign(d[d != 0])
    if not len(ranks):
        return 1.0
    reached = abs(float((ranks * signs).sum()))
    if len(d) > EXACT:
        return float(2 * special.ndtr(-reached / np.sqrt((ranks**2).sum())))
    twice = np.rint(2 * ranks).astype(int)  # ranks of ties are halves
    chances = np.ones(1)
    for rank in twice:
        chances = (np.pad(chances, (rank, 0)) + np.pad(chances, (0, rank))) / 2
    sums = 2 * np.arange(len(chances)) - twice.sum()  # twice the sum of signed ranks
    return float(min(1.0, chances[np.abs(sums) >= 2 * reached - 1e-9].sum()))


def _ranks(values: Floats) -> Floats:
    """From 1; equal values have the mean of their ranks."""
    _, which, many = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(many) - (many - 1) / 2)[which], dtype=float)


def holm(chances: Sequence[float]) -> list[float]:
    """p of several tests, corrected for their number (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    most, found = 0.0, [1.0] * len(chances)
    for place, i in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        most = max(most, min(1.0, (len(chances) - place) * chances[i]))
        found[i] = most
    return found


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p that as many rows are better as worse: McNemar's test of paired rows.

    >>> sign_test(6, 0), sign_test(3, 3), sign_test(0, 0)
    (0.03125, 1.0, 1.0)
    """
    return min(1.0, 2 * float(special.bdtr(min(better, worse), better + worse, 0.5)))


def two_shares(first: float, second: float, rows: int) -> tuple[float, float]:
    """The interval of the difference of two shares of as many rows, not paired (Agresti and Caffo 2000)."""
    p, q = ((share * rows + 1) / (rows + 2) for share in (first, second))
    reach = float(special.ndtri((1 + LEVEL) / 2)) * np.sqrt((p * (1 - p) + q * (1 - q)) / (rows + 2))
    return float(p - q - reach), float(p - q + reach)
