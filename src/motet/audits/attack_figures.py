"""Figures of attacks with their intervals: shares (Clopper and Pearson 1934), areas under curves (a bootstrap), means
(Student).

An attack's advantage is its share of true positives minus that of false ones: 0 is guessing. A threshold that is
chosen on the rows it is measured on finds an advantage where there is none, so each half of the rows is decided by the
threshold that is best on the other half.
Knows arrays of scores. Does not know models or clients.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import special

from motet.guard.private_models.membership import attack

Array = np.ndarray[Any, Any]
LEVEL = 0.95
_RESAMPLES = 400


@dataclass(frozen=True)
class Figure:
    """What one attack found: `value` lies between `low` and `high` with LEVEL; `guess` is what guessing finds."""

    attack: str
    on: str  # what was attacked, say "global model"
    by: str  # who can do it: server, another client, whoever gets the model
    what: str  # what the value is, say "advantage"
    value: float
    low: float
    high: float
    guess: float
    sizes: str  # how many rows or clients it rests on
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def learns(self) -> bool:
        """Whether the attack is surely better than guessing."""
        return bool(self.low > self.guess)

    def row(self) -> dict[str, Any]:
        return asdict(self) | {"learns": self.learns}


def clopper_pearson(right: int, many: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a share.

    >>> [round(v, 4) for v in clopper_pearson(0, 10)], [round(v, 4) for v in clopper_pearson(5, 10)]
    ([0.0, 0.3085], [0.1871, 0.8129])
    """
    if not many:
        return 0.0, 1.0
    tail = (1 - level) / 2
    low = float(special.betaincinv(right, many - right + 1, tail)) if right else 0.0
    high = float(special.betaincinv(right + 1, many - right, 1 - tail)) if right < many else 1.0
    return low, high


def difference(right: int, many: int, wrong: int, others: int, level: float = LEVEL) -> tuple[float, float]:
    """An interval of the difference of two shares: from two exact ones that hold together with the level."""
    each = (1 + level) / 2
    (a, b), (c, d) = clopper_pearson(right, many, each), clopper_pearson(wrong, others, each)
    return a - d, b - c


def best_threshold(members: Array, others: Array) -> float:
    """The score from which rows are taken for members, with the largest advantage."""
    scores = np.unique(np.concatenate([members, others]))
    right = 1 - np.searchsorted(np.sort(members), scores) / len(members)
    wrong = 1 - np.searchsorted(np.sort(others), scores) / len(others)
    return float(scores[int(np.argmax(right - wrong))])


def decided(members: Array, others: Array, rng: np.random.Generator) -> tuple[int, int]:
    """How many members and others are taken for members, each half by the other half's best threshold."""
    halves = [(rng.permutation(len(v)) % 2).astype(bool) for v in (members, others)]
    right = wrong = 0
    for here in (True, False):
        m, o = halves[0] == here, halves[1] == here
        threshold = best_threshold(members[~m], others[~o])
        right += int((members[m] >= threshold).sum())
        wrong += int((others[o] >= threshold).sum())
    return right, wrong


def area_interval(members: Array, others: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Of the area under the ROC curve, by a bootstrap of members and others."""
    order = np.sort(others)
    found = []
    for _ in range(_RESAMPLES):
        m = members[rng.integers(0, len(members), len(members))]
        o = order[np.sort(rng.integers(0, len(order), len(order)))]
        below = np.searchsorted(o, m) + np.searchsorted(o, m, side="right")
        found.append(below.mean() / (2 * len(o)))
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def membership_figure(
    name: str, on: str, by: str, members: Array, others: Array, seed: int = 0, delta: float = 0.0, **more: Any
) -> Figure:
    """How well scores, which are larger for members, separate members from others. `delta` is that of the run's
    budget."""
    rng = np.random.default_rng(seed)
    right, wrong = decided(members, others, rng)
    low, high = difference(right, len(members), wrong, len(others))
    area = attack(-members, -others).auc
    true, false = clopper_pearson(right, len(members), 0.975), clopper_pearson(wrong, len(others), 0.975)
    # under (epsilon, delta) neither share is more than e^epsilon times the other, plus delta; nor are their rests
    bound = max(log_ratio(true[0] - delta, false[1]), log_ratio(1 - false[1] - delta, 1 - true[0]))
    more |= {
        "auc": area,
        "auc_interval": area_interval(members, others, rng),
        "true_positives": right / len(members),
        "false_positives": wrong / len(others),
        "epsilon_at_least": max(bound, 0.0),
        "members": len(members),
        "others": len(others),
    }
    value = right / len(members) - wrong / len(others)
    sizes = f"{len(members):,} members, {len(others):,} others"
    return Figure(name, on, by, "advantage", value, low, high, 0.0, sizes, more)


def log_ratio(a: float, b: float) -> float:
    """0 where there is none."""
    return float(np.log(a / b)) if a > 0 and b > 0 else 0.0


def mean_figure(name: str, on: str, by: str, what: str, values: Array, sizes: str, **more: Any) -> Figure:
    """The mean over clients of a gain over guessing, with Student's interval."""
    n, reach = len(values), np.nan
    if n > 1:
        reach = float(special.stdtrit(n - 1, (1 + LEVEL) / 2)) * float(np.std(values, ddof=1)) / np.sqrt(n)
    mean, reach = float(np.mean(values)), float(reach)
    return Figure(name, on, by, what, mean, mean - reach, mean + reach, 0.0, sizes, dict(more))
