"""Whether it is worth trying to federate, from who holds what: skew, power, and which methods fit.

Everything here is known before anything is trained. Skew is held against what chance alone would show with as few
rows. Which methods fit are rules of thumb, each with the figures that it rests on; a probe says what they are worth
(probe.py). Knows surveys as plain data. Does not know how anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import special, stats

from motet.data.skew import distance

Plain = dict[str, Any]
STRONG, WEAK = 0.3, 0.1  # of label skew: distances beyond what chance shows
SHIFTED = 0.5  # standard deviations that a client's mean of a column is from everyone's, to count as shifted
BRIGHTER = 0.1  # the same for images: difference of mean brightness, from 0 to 1
DIFFER = 0.2  # share of test rows on which two models are taken to differ, before anything is known of them
VARY = 0.05  # standard deviation of true gains between clients, taken likewise
FOUND = 0.8  # how often a gain is to be found
POWER = float(special.ndtri(0.975) + special.ndtri(FOUND))  # standard errors, at a level of 5 %
FEWEST_SIGNS = 6  # rows that differ, all in favour, without which McNemar's test says nothing at 5 %
_EXACT = 2000  # rows up to which the power of McNemar's test is computed exactly
MANY_CLIENTS, FEW_ROWS, STACK_ROWS = 1000, 50, 1000
_DRAWS = 64
_CLUSTERS = range(2, 5)
_APART = 0.5  # silhouette from which clients' labels are in groups
_REFERENCES = 19  # sets of clients without groups, each of which the silhouette must exceed


@dataclass(frozen=True)
class Skew:
    """How much clients differ, and how much they would by chance."""

    label: float  # mean Jensen-Shannon distance of clients' labels to everyone's
    label_by_chance: float  # the same if every client drew its rows from everyone's
    quantity: float  # Gini of the clients' rows
    shifted: tuple[str, ...]  # clients whose features are shifted beyond chance
    columns_differ: bool  # clients hold different columns
    groups: int  # groups of clients with like labels; 1: none are seen

    @property
    def label_excess(self) -> float:
        return max(0.0, self.label - self.label_by_chance)

    @property
    def words(self) -> str:
        """strong, moderate or weak: of labels."""
        excess = self.label_excess
        return "strong" if excess >= STRONG else "moderate" if excess >= WEAK else "weak"


@dataclass(frozen=True)
class Fit:
    """A method that fits these data, and why."""

    method: str
    why: str


def skew_of(survey: Plain) -> Skew:
    clients = [c for c in survey["clients"] if not c["unseen"]]
    whole = np.array(survey["counts"], float)
    counts = [np.array(c["counts"], float) for c in clients]
    found = Skew(
        label=float(np.mean([c["distance"] for c in clients])),
        label_by_chance=float(np.mean([distance_by_chance(whole, int(c.sum())) for c in counts])),
        quantity=float(survey["gini"]),
        shifted=tuple(c["client"] for c in clients if is_shifted(c, clients)),
        columns_differ=any(c["columns"] != survey["columns"] for c in clients),
        groups=1,
    )
    beyond = survey["kind"] == "classes" and found.words != "weak"
    return replace(found, groups=groups_of(counts)) if beyond else found


def distance_by_chance(whole: np.ndarray, rows: int) -> float:
    """The mean distance of `rows` rows, drawn from everyone's labels, to everyone's; the draws are fixed."""
    if rows == 0:
        return 0.0
    draws = np.random.default_rng(rows).multinomial(rows, whole / whole.sum(), _DRAWS)
    return float(np.mean([distance(draw, whole) for draw in draws]))


def is_shifted(client: Plain, clients: Sequence[Plain]) -> bool:
    """Whether a client's features are elsewhere: by half a deviation and more than three standard errors."""
    rows = client["train"] + client["val"]
    chance = 3 / np.sqrt(max(rows, 1))
    if client["channels"]:
        usual = np.median([np.mean(c["channels"]) for c in clients])
        return bool(abs(np.mean(client["channels"]) - usual) > BRIGHTER)
    return any(abs(d["away"]) > max(SHIFTED, chance) for d in client["apart"])


def groups_of(counts: Sequence[np.ndarray]) -> int:
    """How many groups of two or more clients their labels fall into; 1 where they do not.

    Shares that are spread evenly fall into parts as well, with silhouettes above a half. So the silhouette must exceed
    those of as many clients spread evenly over the same space.
    """
    shares = np.stack([c / max(c.sum(), 1) for c in counts])
    if len(shares) < 6:
        return 1
    found, many = best_silhouette(shares)
    if found < _APART:
        return 1
    middle = shares.mean(0)
    _, _, axes = np.linalg.svd(shares - middle, full_matrices=False)
    along = (shares - middle) @ axes.T  # (clients, principal components)
    draw = np.random.default_rng(0)
    for _ in range(_REFERENCES):
        if best_silhouette(draw.uniform(along.min(0), along.max(0), along.shape))[0] >= found:
            return 1
    return many


def best_silhouette(points: np.ndarray) -> tuple[float, int]:
    """The largest mean silhouette of two to four groups, none of one client alone, and the number of groups."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    best = (0.0, 1)
    different = len(np.unique(points.round(9), axis=0))
    for k in (k for k in _CLUSTERS if k <= different):
        labels = KMeans(k, n_init=3, random_state=0).fit_predict(points)
        if np.bincount(labels, minlength=k).min() >= 2 and k < len(points):
            best = max(best, (float(silhouette_score(points, labels)), k))
    return best


# ---- power ----


@cache
def smallest_gain(rows: int, differ: float = DIFFER) -> float:
    """The smallest gain of accuracy that so many test rows show four times of five, by McNemar's exact test; nan where
    none would. Two models cannot differ on fewer rows than their gain: beyond `differ` all that differ are in favour.

    >>> round(smallest_gain(1000), 3), smallest_gain(5)
    (0.04, nan)
    """
    if rows < FEWEST_SIGNS:
        return float("nan")
    if rows > _EXACT:
        return POWER * float(np.sqrt(differ / rows))
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(rows, middle, differ) >= FOUND else (middle, high)
    return high


def power_of(rows: int, gain: float, differ: float = DIFFER) -> float:
    """How often McNemar's exact test finds this gain at a level of 5 %, if models differ on this share of the rows.

    >>> round(power_of(6, 1.0), 3), round(power_of(10, 0.6), 3)  # by hand: all six; 6 or more of 10
    (1.0, 0.633)
    """
    share = max(differ, gain)
    many = np.arange(FEWEST_SIGNS, rows + 1)  # rows that differ
    least = stats.binom.ppf(0.025, many, 0.5)
    least -= stats.binom.cdf(least, many, 0.5) > 0.025  # the most against that still are significant
    found = stats.binom.cdf(least, many, (1 - gain / share) / 2)
    return float((stats.binom.pmf(many, rows, share) * found).sum())


def smallest_mean_gain(rows: Sequence[int], differ: float = DIFFER, vary: float = VARY) -> float:
    """The smallest mean gain of accuracy over clients that a study with these test rows shows four times of five."""
    known = np.array([n for n in rows if n > 0], float)
    if len(known) < 2:
        return float("nan")
    error = np.sqrt((differ / known).sum() / len(known) ** 2 + vary**2 / len(known))
    level = special.stdtrit(len(known) - 1, 0.975) + special.ndtri(FOUND)
    found = float(level * error)
    return found if found < 1 else float("nan")


# ---- methods ----


def fitting(survey: Plain, skew: Skew) -> list[Fit]:
    """Methods to try, the plain one first; each name once."""
    clients = [c for c in survey["clients"] if not c["unseen"]]
    rows = float(np.median([c["train"] for c in clients]))
    found = [Fit("fedavg", "one model for all: what every other method has to beat")]
    found += by_labels(survey, skew)
    if len(clients) >= MANY_CLIENTS:
        found.append(
            Fit("perfedavg", f"{len(clients):,} clients are each seen rarely: it keeps nothing at them")
        )
    if skew.groups > 1:
        found.append(Fit("ifca", f"labels fall into {skew.groups} groups of clients: a model for each group"))
    if skew.shifted:
        share = f"{len(skew.shifted)} of {len(clients)} clients have features that are shifted"
        found.append(Fit("ditto", f"{share}: each has a model of its own near the common one"))
    if skew.columns_differ and rows >= STACK_ROWS:
        found.append(
            Fit("stacking", "clients hold different columns, and have rows enough for models of their own")
        )
    if rows < FEW_ROWS:
        few = f"half of the clients have {rows:.0f} training rows or fewer"
        found.append(Fit("mrmtl", f"{few}: own models are drawn to their mean"))
    return once(found)


def by_labels(survey: Plain, skew: Skew) -> list[Fit]:
    if survey["kind"] != "classes":
        near, on = "each has a model of its own near the common one", "the common model, trained on at home"
        return [Fit("ditto", near), Fit("finetune", on)]
    said = f"label skew is {skew.words} ({skew.label:.2f}, {skew.label_by_chance:.2f} by chance)"
    tune = Fit("finetune", f"{said}: the common model, trained on at home")
    ditto = Fit("ditto", f"{said}: a model of its own near the common one")
    if skew.words == "weak":
        return [Fit("fedprox", f"{said}: one model serves all, if local training does not drift"), tune]
    own = Fit("fedper", f"{said}: the last layer stays at home")
    return [own, ditto, tune] if skew.words == "strong" else [ditto, tune]


def once(found: Sequence[Fit]) -> list[Fit]:
    """The first of each method."""
    first: dict[str, Fit] = {}
    for fit in found:
        first.setdefault(fit.method, fit)
    return list(first.values())
