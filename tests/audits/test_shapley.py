"""Shapley values of games: by hand, exact, and by GTG-Shapley within its stated error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from motet.audits.recorded_replies import Recorder, rebuilt
from motet.audits.shapley import Sampling, exact, gtg, quantile, summed, to_others
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.mean import RunningMean
from motet.methods.fedavg import FedAvg
from rounds import TWO, one_number, turn


def test_two_players_share_what_they_gain_together() -> None:
    worth = {(): 0.0, (0,): 1.0, (1,): 2.0, (0, 1): 6.0}
    found = exact(2, lambda s: np.array([worth[tuple(sorted(s))]]), [None, None])
    assert found.matrix[:, 0].tolist() == [2.5, 3.5]  # ((1 + 4) / 2, (2 + 5) / 2)
    assert found.coalitions == 4


def test_values_sum_to_what_all_gain_at_each_site() -> None:
    game = random_game(5, 3, seed=1)
    found = exact(5, game, [0, 1, 2, None, None])
    assert found.matrix.sum(0) == pytest.approx(game(frozenset(range(5))) - game(frozenset()))


def test_a_players_own_site_does_not_count_for_it() -> None:
    matrix = np.array([[9.0, 1.0, 3.0], [2.0, 9.0, 4.0]])
    assert to_others(matrix, [0, None]).tolist() == [2.0, 5.0]


def random_game(players: int, sites: int, seed: int) -> Any:
    """A player of noise harms, the others help less and less; and every coalition has a whim of its own."""
    rng = np.random.default_rng(seed)
    help_, whims = rng.uniform(0.5, 1.5, players), rng.normal(size=(2**players, sites)) * 0.1
    help_[0] = -3.0
    tastes = rng.uniform(0.8, 1.2, sites)

    def worth(members: frozenset[int]) -> Any:
        total = sum(help_[j] for j in members)
        return np.sign(total) * np.log1p(abs(total)) * tastes + whims[sum(1 << j for j in members)]

    return worth


@pytest.mark.parametrize("seed", range(5))
def test_gtg_is_within_its_stated_error_of_exact_values_of_eight_players(seed: int) -> None:
    game, own = random_game(8, 4, seed), [0, 1, 2, 3, None, None, None, None]
    true = summed([exact(8, game, own)], own)
    found = summed([gtg(8, game, own, np.random.default_rng(seed), Sampling())], own)
    assert (np.abs(found.value - true.value) <= found.error).all()
    assert found.error.max() < 0.5 * np.abs(true.value).max()


def test_the_stated_error_holds_for_all_players_at_once_in_most_draws() -> None:
    game, own = random_game(6, 2, 3), [None] * 6
    true = exact(6, game, own).matrix.mean(1)
    few = Sampling(groups=3)  # sampling ends early, so that chance is large
    inside = 0
    for draw in range(100):
        found = summed([gtg(6, game, own, np.random.default_rng(draw), few)], own)
        inside += bool((np.abs(found.value - true) <= found.error).all())
    assert inside >= 96  # of 99 that are promised


def test_gains_that_cancel_behind_a_cut_are_not_lost() -> None:
    """Players 1 and 2 bring +1 and -1 whenever they come: the rest behind player 0 is worth nothing together."""
    added = np.array([1.0, 1.0, -1.0])
    game, own = lambda s: np.array([sum(added[j] for j in s)]), [None] * 3
    every = [gtg(3, game, own, np.random.default_rng(k), Sampling(groups=20, error=0.0)) for k in range(20)]
    assert np.mean([r.matrix[:, 0] for r in every], 0) == pytest.approx(added, abs=0.15)


def test_a_round_in_which_nothing_happens_is_cut() -> None:
    asked: list[Any] = []

    def worth(members: frozenset[int]) -> Any:
        asked.append(members)
        return np.array([1e-6 * len(members)])

    found = gtg(10, worth, [None] * 10, np.random.default_rng(0), Sampling(), gained=1.0)
    assert (
        found.cut and not found.matrix.any() and len(asked) == 12
    )  # nobody, all, and all but one, ten times
    assert (found.hidden >= 1e-6).all()


def test_quantiles_grow_with_the_number_of_players() -> None:
    assert quantile(1e6, 1) == pytest.approx(2.576, abs=1e-3)
    assert quantile(1e6, 8) == pytest.approx(3.227, abs=1e-3)


def test_a_round_of_fedavg_by_hand() -> None:
    """From 1, a's reply is 1.4 (weight 1) and b's 0.2 (weight 3): models of {}, a, b and both are 1, 1.4, 0.2 and 0.5.
    Losses are (w - 3)^2 at a and 4 w^2 at b. a brings b ((4 - 7.84) + (0.16 - 1)) / 2, and b brings a
    ((4 - 7.84) + (2.56 - 6.25)) / 2."""
    method, loop = FedAvg(one_number(), lr=0.1, batch=4), Loop(TWO)
    engine = Recorder(loop, loop)
    before = start(engine, method, turn(engine, -1))
    play(engine, method, before, now := turn(engine, 0))

    def worth(members: frozenset[int]) -> Any:
        state = rebuilt(method, before, now, engine.asks, {"ab"[i] for i in members}, RunningMean)
        return -loop.evaluate(method, state, now, "val", ("global",))[1]["global"]["loss"].numpy()

    found = summed([exact(2, worth, [0, 1])], [0, 1])
    assert found.value == pytest.approx([-2.34, -3.765], rel=1e-5)
    assert found.matrix.sum(0) == pytest.approx([4 - 6.25, 4 - 1], rel=1e-5), "what both bring together"
