"""Scores as numbers that can be summed over sites, and what their sums say: means and spreads, and no site's score.

Of each metric a site sends whether it has a score, the score and its square; of a metric of pairs of rows also the
score times the pairs. Sums over sites give the mean over sites that have a score, as tables show it, and its standard
deviation. Scores of all rows together (a pooled AUC, say) cannot be had from them.
Knows metrics. Does not know masks, letters or sites.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from motet.core import Tree

_COUNTS = ("n", "pairs", "events")
_BY_PAIRS = ("auc", "cindex")
_LARGEST = (
    2.0**47
)  # of a score: exact sums hold its square; a larger one is none, like one that is not finite
Scores = Mapping[str, Mapping[str, Any]]  # by side, then by metric


def score_names(scores: Scores) -> list[list[str]]:
    """(side, metric) in the order of the numbers."""
    return [[side, metric] for side in sorted(scores) for metric in sorted(scores[side])]


def width_of(names: Sequence[Sequence[str]]) -> int:
    """How many numbers there are."""
    return sum(1 if m in _COUNTS else 4 if m in _BY_PAIRS else 3 for _, m in names)


def score_numbers(scores: Scores) -> list[Fraction]:
    """What one site adds to the sums.

    >>> found = score_numbers({"global": {"n": 4.0, "accuracy": 0.75}})
    >>> [float(v) for v in found]  # there is a score, the score, its square, rows
    [1.0, 0.75, 0.5625, 4.0]
    """
    found = list[Fraction]()
    for side, metric in score_names(scores):
        value = float(scores[side][metric])
        if metric in _COUNTS:
            found.append(Fraction(value))
            continue
        pairs = float(scores[side].get("pairs", 1.0)) if metric in _BY_PAIRS else 1.0
        has = abs(value) < _LARGEST and pairs > 0
        x = Fraction(value) if has else Fraction(0)
        found += [Fraction(int(has)), x, x * x]
        if metric in _BY_PAIRS:
            found.append(x * Fraction(pairs))
    return found


def mean_scores(
    names: Sequence[Sequence[str]], sums: Sequence[Fraction], sites: int, part: str
) -> tuple[Tree, dict[str, dict[str, float]]]:
    """Scores of all sites together as those of one client, and their standard deviations over sites. A loss that most
    sites do not have is no number: training diverged. On validation rows, which choose the round, metrics of pairs of
    rows count by pairs; on test rows every site counts the same, as in tables."""
    rest, raw = iter(sums), dict[str, dict[str, list[Fraction]]]()
    for side, metric in names:
        raw.setdefault(side, {})[metric] = [next(rest) for _ in range(width_of([(side, metric)]))]
    means: Tree = {
        side: {m: one(_mean(m, v, s, sites, part)) for m, v in s.items()} for side, s in raw.items()
    }
    spreads = {
        side: {m: _spread(v) for m, v in s.items() if m not in _COUNTS and v[0] > 0}
        for side, s in raw.items()
    }
    return means, spreads


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _mean(
    metric: str, v: Sequence[Fraction], of_side: Mapping[str, Sequence[Fraction]], sites: int, part: str
) -> float:
    if metric in _COUNTS:
        return float(v[0])
    if metric in _BY_PAIRS and "pairs" in of_side and part == "val":
        pairs = of_side["pairs"][0]
        return float(v[3] / pairs) if pairs > 0 else math.nan
    few = 2 * v[0] <= sites if metric == "loss" else v[0] < 1
    return math.nan if few else float(v[1] / v[0])


def _spread(v: Sequence[Fraction]) -> float:
    """The standard deviation over the sites that have a score, which are the population."""
    has, total, squares = v[:3]
    return math.sqrt(max(float(squares / has - (total / has) ** 2), 0.0))
