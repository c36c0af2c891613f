"""Swarms by themselves: draws, alpha, and the best of several tries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.methods.swarm import Swarm
from motet.parts import particle_losses as losses
from motet.parts.swarms import SwarmRule, Swarms, UniformDraws, adapt_alpha
from rounds import turn
from swarm_data import data_of, divided, line, linear


def test_draws_are_uniform_and_depend_on_seed_and_swarm_alone() -> None:
    u = UniformDraws.seeded(5, 2).draw(100_000)
    assert u.min() >= 0 and u.max() < 1
    assert u.mean(1) == pytest.approx([1 / 2, 1 / 2], abs=0.005)
    assert u.var(1) == pytest.approx([1 / 12, 1 / 12], abs=0.001)
    assert abs(np.corrcoef(u)[0, 1]) < 0.015
    assert np.array_equal(UniformDraws.seeded(5, 7).draw(10)[:2], u[:, :10])
    assert not np.array_equal(UniformDraws.seeded(6, 2).draw(10), u[:, :10])


@given(first=st.integers(1, 50), then=st.integers(1, 50))
def test_draws_go_on_where_they_were(first: int, then: int) -> None:
    draws = UniformDraws.seeded(3, 2)
    whole = draws.draw(first + then)
    again = UniformDraws.seeded(3, 2)
    assert np.array_equal(again.draw(first), whole[:, :first])
    assert np.array_equal(UniformDraws(again.positions()).draw(then), whole[:, first:])


@pytest.mark.parametrize(
    "consecutive, lengths", [(False, [1, 2, 2, 4, 4, 2, 2]), (True, [1, 2, 2, 4, 4, 4, 2])]
)
def test_alpha_doubles_on_success_and_halves_after_failures(consecutive: bool, lengths: list[int]) -> None:
    rule = SwarmRule(patience=3, consecutive=consecutive)
    alpha, failures, seen = np.ones(1), np.zeros(1, int), [1]
    for fell in (True, False, True, False, False, False):  # cumulative: the third failure is the fifth epoch
        adapt_alpha(alpha, failures, np.array([fell]), rule)
        seen.append(int(alpha[0]))
    assert seen == lengths


def test_alpha_has_a_cap_or_is_fixed() -> None:
    alpha, none, fell = np.full(2, 3.0), np.zeros(2, int), np.array([True, True])
    adapt_alpha(alpha, none, fell, SwarmRule(adapt=np.array([True, False]), alpha_cap=4.0))
    assert alpha.tolist() == [4, 3]


def test_a_particle_takes_the_best_of_its_tries() -> None:
    x, y = line()
    here = Loop(divided(x, y, torch.arange(60) % 4))
    method = Swarm(linear(4, 1), particles=3, tries=4, stretch=1, w1=0.2)
    s = start(here, method, turn(here, -1))
    moved = Swarms(s, SwarmRule.of(method), 1)
    letter = torch.from_numpy(moved.candidates())
    assert letter.shape == (1, 13, 5)
    cost = losses.mean_losses(method.task, letter, data_of(x, y))[0, :12].reshape(3, 4)
    best, at = cost.min(1)
    s2 = play(here, method, s, turn(here, 0))
    assert torch.allclose(s2["loss"][0], torch.minimum(best, s["loss"][0]))
    tried = letter[0, :12].reshape(3, 4, 5)[torch.arange(3), at]
    assert torch.allclose(s2["v"][0], tried - s["theta"][0])  # the speed of the try that counted
