"""Shapley values of a round's game: exact, or by GTG-Shapley with a stated error.

A game says what a coalition of clients is worth to each site: a vector, one number for each site. Shapley values are
linear in the worth, so one pass gives a matrix: what each client brought to each site. A client's value is the mean
over the other sites, so that nobody gains by rows of its own.

GTG-Shapley (Liu et al. 2022, "GTG-Shapley: Efficient and Accurate Participant Contribution Evaluation in Federated
Learning", Algorithm 1): orders of clients are drawn so that each client comes first equally often (guided sampling);
the rest of an order is cut where the coalition is worth nearly as much as all (truncation within a round), and a
round that changes nothing is cut as a whole (truncation between rounds).

Differs from the paper. An order that is cut is walked to its end with a small chance, and its last gains then count
the more: without that, gains behind the cut that cancel each other are lost (a client of noise among honest ones).
A round is cut as a whole only if besides no single client's absence changes anything. Sampling goes on until the stated
error is small, instead of until estimates stop moving. The stated error is an interval of the mean over orders
(Student's t, for all clients at once; orders that start with each client equally often vary less than it assumes), and
what rounds that were cut may hide.
Knows games. Does not know what they are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import factorial
from typing import Any

import numpy as np
from scipy import special

Array = np.ndarray[Any, Any]
Worth = Callable[[frozenset[int]], Array]  # a coalition of players to its worth at each site, (sites,)
LEVEL = 0.99  # of stated errors, for all clients at once
MOST_EXACT = 8  # players up to which a round's game is solved exactly: 256 coalitions


@dataclass(frozen=True)
class Sampling:
    """When sampling ends, and what is cut."""

    within: float = 0.02  # of a round's gain: an order is cut where the rest is worth less
    walked: float = 0.25  # chance that an order that would be cut is walked to its end
    between: float = 0.001  # of the gain of all rounds so far: a round that changes less is cut
    error: float = 0.3  # stated error of a round that ends sampling, as a part of the mean absolute value
    groups: int = 50  # of orders, at most; in a group each client is first once
    least: int = 3  # groups, at least


USUAL = Sampling()


@dataclass
class RoundValues:
    """What each player brought to each site in one round, and how sure that is."""

    matrix: Array  # (players, sites)
    variance: Array  # (players,) of each player's mean over sites that are not its own
    freedom: float  # degrees of freedom of the variance; 0 where nothing was drawn
    hidden: Array  # (players,) what a round that was cut may hide
    coalitions: int  # that were evaluated
    cut: bool = False  # as a whole


@dataclass
class Cached:
    """A game that evaluates each coalition once."""

    worth: Worth
    known: dict[frozenset[int], Array] = field(default_factory=dict)

    def __call__(self, members: frozenset[int]) -> Array:
        if members not in self.known:
            self.known[members] = np.asarray(self.worth(members), float)
        return self.known[members]


def to_others(matrix: Array, own: Sequence[int | None]) -> Array:
    """(players,) the mean over sites that are not a player's own; `own` is where a player's site stands, if it has one.

    >>> to_others(np.array([[9.0, 1.0], [2.0, 9.0]]), [0, 1]).tolist()
    [1.0, 2.0]
    """
    rows = (row if at is None else np.delete(row, at) for row, at in zip(matrix, own, strict=True))
    return np.array([row.mean() if len(row) else np.nan for row in rows])


def exact(players: int, worth: Worth, own: Sequence[int | None]) -> RoundValues:
    """All coalitions are evaluated: for n players, 2^n of them."""
    game, everyone = Cached(worth), range(players)
    sites = len(game(frozenset()))
    matrix = np.zeros((players, sites))
    for code in range(2**players):
        here = frozenset(j for j in everyone if code >> j & 1)
        for j in everyone:
            if j not in here:
                size = len(here)
                weight = factorial(size) * factorial(players - size - 1) / factorial(players)
                matrix[j] += weight * (game(here | {j}) - game(here))
    zeros = np.zeros(players)
    return RoundValues(matrix, zeros, 0.0, zeros.copy(), len(game.known))


def gtg(
    players: int,
    worth: Worth,
    own: Sequence[int | None],
    rng: np.random.Generator,
    how: Sampling,
    gained: float = 0.0,
) -> RoundValues:
    """GTG-Shapley of one round; `gained` is the absolute gain of all rounds before it."""
    game, everyone = Cached(worth), frozenset(range(players))
    step = game(everyone) - game(frozenset())
    gain, zeros = abs(float(step.mean())), np.zeros(players)
    small = how.between * max(gained, gain)
    if gain < small and all(_lost(game, everyone, j) < small for j in everyone):
        return RoundValues(
            np.zeros((players, len(step))), zeros, 0.0, zeros + small, len(game.known), cut=True
        )
    drawn = Orders(players, len(step))
    while drawn.groups < how.groups and not drawn.is_sure(how):
        drawn.add_group(game, own, how.within * gain, how.walked, rng)
    return RoundValues(drawn.sums / drawn.many, drawn.variance, drawn.many - 1.0, zeros, len(game.known))


def _lost(game: Cached, everyone: frozenset[int], j: int) -> float:
    return abs(float((game(everyone) - game(everyone - {j})).mean()))


class Orders:
    """Gains of players in orders that were drawn so far."""

    def __init__(self, players: int, sites: int) -> None:
        self.players, self.groups = players, 0
        self.sums = np.zeros((players, sites))
        self.each: list[Array] = []  # for each order, (players,) gains at other sites

    @property
    def many(self) -> int:
        return len(self.each)

    @property
    def variance(self) -> Array:
        """(players,) of the mean over orders."""
        return np.asarray(np.var(self.each, axis=0, ddof=1) / self.many)

    def add_group(
        self,
        game: Cached,
        own: Sequence[int | None],
        tolerance: float,
        walked: float,
        rng: np.random.Generator,
    ) -> None:
        """Orders in which each player is first once."""
        self.groups += 1
        for first in range(self.players):
            rest = rng.permutation([j for j in range(self.players) if j != first]).tolist()
            gains = gains_in(game, [first, *rest], tolerance, walked, rng)
            self.sums += gains
            self.each.append(to_others(gains, own))

    def is_sure(self, how: Sampling) -> bool:
        if self.groups < how.least:
            return False
        errors = quantile(self.many - 1.0, self.players) * np.sqrt(self.variance)
        return float(errors.max()) <= how.error * float(np.abs(np.mean(self.each, 0)).mean())


def gains_in(
    game: Cached, order: Sequence[int], tolerance: float, walked: float, rng: np.random.Generator
) -> Array:
    """(players, sites) what each player adds in this order. Where the rest is worth less than the tolerance the order
    is cut, but for a chance `walked`, in which what follows counts 1 / walked: right in the mean."""
    whole, here, counts = game(frozenset(order)), frozenset[int](), 1.0
    gains = np.zeros((len(order), len(whole)))
    for place, j in enumerate(order):
        near = abs(float((whole - game(here)).mean())) < tolerance
        if place and counts == 1.0 and near:
            if rng.random() >= walked:
                break
            counts = 1 / walked
        gains[j] = counts * (game(here | {j}) - game(here))
        here |= {j}
    return gains


def quantile(freedom: float, many: int) -> float:
    """Student's quantile for intervals of so many values that hold all at once with LEVEL (Bonferroni)."""
    return float(special.stdtrit(freedom, 1 - (1 - LEVEL) / (2 * max(many, 1))))


# ---- all rounds ----


@dataclass(frozen=True)
class Values:
    """The sum over rounds."""

    matrix: Array  # (players, sites)
    value: Array  # (players,) mean over the other sites
    error: Array  # (players,) stated: the value lies within it with LEVEL, all players at once
    sampled: Array  # (players,) the part of the error that comes from sampling
    coalitions: int
    rounds: int
    cut_rounds: int


def summed(rounds: Sequence[RoundValues], own: Sequence[int | None]) -> Values:
    """Values of all rounds together; variances add up, with degrees of freedom by Satterthwaite."""
    matrix = np.sum([r.matrix for r in rounds], 0)
    players = len(matrix)
    variance = np.sum([r.variance for r in rounds], 0)
    drawn = [r for r in rounds if r.freedom > 0]
    under = np.sum([r.variance**2 / r.freedom for r in drawn], 0) if drawn else np.zeros(players)
    freedom = np.divide(variance**2, under, out=np.full(players, np.inf), where=under > 0)
    t = np.array([quantile(min(f, 1e6), players) for f in freedom])
    sampled = t * np.sqrt(variance)
    hidden = np.sum([r.hidden for r in rounds], 0)
    return Values(
        matrix, to_others(matrix, own), sampled + hidden, sampled,
        sum(r.coalitions for r in rounds), len(rounds), sum(r.cut for r in rounds),
    )  # fmt: skip
