"""A stretch of epochs at once: the same numbers as one by one, the same traffic, and never where it would hide
something. Without numba the loops run as ordinary Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.core import Fused, average
from motet.engines.choose import choose
from motet.engines.loop import Loop
from motet.engines.mean import RunningMean
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.hostile import Hostile
from motet.methods.swarm import Swarm
from motet.parts.fused_swarms import pooled_root
from motet.parts.particle_losses import gram_root, squared_errors
from motet.parts.swarm_kernels import draw
from motet.parts.swarms import UniformDraws
from rounds import after, turn
from swarm_data import data_of, divided, line, linear, same


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Whole numbers of NumPy warn when they wrap around; compiled ones do not."""
    with np.errstate(over="ignore"):
        yield


def lines() -> dict[str, Any]:
    x, y = line()
    return divided(x.double(), y.double(), torch.arange(60) % 4)


@pytest.mark.parametrize(
    "how",
    [
        {"w1": 0.0, "w2": 1.0},
        {"w1": 0.0, "w2": 0.3},
        {"w1": 0.4, "w2": 0.4},
        {"consecutive": True, "alpha_cap": 3.0, "bound": 2.0},
        {"adapt": False},
        {"swarms": 2, "w1": 0.2},
    ],
)
def test_three_hundred_epochs_at_once_are_those_one_by_one(how: Any) -> None:
    method = Swarm(linear(4, 1), **{"particles": 4, "stretch": 100, "alpha": 5.0, "first": "unit"} | how)
    engines = [Counted(Loop(lines(), fuses=fuses)) for fuses in (False, True)]
    one_by_one, fused = (after(method, e, 3) for e in engines)
    assert same(one_by_one, fused) < 1e-12
    assert all(torch.equal(one_by_one[k], fused[k]) for k in ("source", "epoch", "failures", "alpha"))
    assert engines[0].take_by_verb() == engines[1].take_by_verb()


def test_how_many_epochs_are_one_call_changes_no_bit() -> None:
    a, b = (
        after(Swarm(linear(4, 1), particles=4, stretch=n, w1=0.3), Loop(lines(), fuses=True), 60 // n)
        for n in (12, 30)
    )
    assert same(a, b) == 0


def test_draws_are_numpys() -> None:
    draws = UniformDraws.seeded(7, 1)
    place, found = draws.positions().numpy().view(np.uint64)[0].copy(), np.empty((8, 2, 3, 4))
    draw(place, found, 2)
    wanted = draws.draw(2, 2, 4, 3)[0]  # (epochs, factors, particles, numbers)
    wanted[:, 1] -= 0.5
    assert np.array_equal(found[:2].transpose(0, 1, 3, 2), wanted)
    assert np.array_equal(place, draws.positions().numpy().view(np.uint64)[0])


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_pooled_root_gives_the_mean_of_the_clients_losses(n: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    task = linear(4, 1)
    parts = [data_of(torch.randn(m, 4, generator=g), torch.randn(m, generator=g)) for m in (n, 7)]
    roots = [gram_root(task, d) for d in parts]
    theta = torch.randn(1, 5, 5, generator=g, dtype=torch.float64)
    mean = (n * squared_errors(roots[0], theta) + 7 * squared_errors(roots[1], theta)) / (n + 7)
    pooled = torch.from_numpy(pooled_root([r.numpy() for r in roots], [n, 7]))
    assert torch.allclose(squared_errors(pooled, theta), mean, rtol=1e-12)


def test_a_client_that_is_away_is_found_out() -> None:
    """Losses that are remembered are those of four clients; then three answer."""

    def silent(client: str, number: int) -> bool:
        return client == "c1" and number == 1

    method = Swarm(linear(4, 1), particles=4, stretch=20)
    one_by_one, fused = (
        after(method, Faulty(Loop(lines(), fuses=fuses), silent), 3) for fuses in (False, True)
    )
    assert same(one_by_one, fused) < 1e-12


def test_nothing_is_fused_past_an_attack_or_a_guard() -> None:
    method = Swarm(linear(4, 1), particles=4, stretch=20)
    attacked = [after(method, Hostile(Loop(lines(), fuses=f), ["c1"], "zero"), 1) for f in (False, True)]
    assert same(*attacked) == 0

    class Guarded(RunningMean):
        """Any mean of a guard's own."""

    guarded = Loop(lines(), fuses=True)
    guarded.fold = Guarded
    assert same(after(method, guarded, 1), after(method, Loop(lines()), 1)) == 0


def test_an_engine_that_does_not_compile_answers_as_always() -> None:
    method, here = Swarm(linear(4, 1)), Loop(lines())
    here.begin(method, turn(here, 0))
    theta = torch.zeros(1, 3, 5, dtype=torch.float64)
    ask = average(method.loss_of_particles, here.clients, send={"theta": theta}, fuse=lambda keeps, w: 7)
    assert here.ask(ask).shape == (2, 1, 3)
    here.fuses = True
    done = here.ask(ask)
    assert isinstance(done, Fused) and done.asks == 7 and done.reply.shape == (2, 1, 3)


@pytest.mark.parametrize(
    "how", [{"rule": "pso"}, {"tries": 2}, {"clip": 1.0}, {"clip": 1.0, "epsilon": 1.0}, {"loss": "losses:f"}]
)
def test_what_the_loops_do_not_know_is_asked_one_by_one(how: Any) -> None:
    assert Swarm(linear(4, 1), **how).fused_asks() == 0
    assert Swarm(linear(4, 3, "classes")).fused_asks() == 0
    assert Swarm(linear(4, 1), stretch=17).fused_asks() == 17


def test_a_swarm_runs_on_the_loop_and_says_whether_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    task = linear(4, 1)
    method = Swarm(task, stretch=100)
    short = choose("auto", task, lines(), lambda _: 10, method=method, rounds=20)
    assert (short.name, short.compiled) == ("loop", False) and "too few" in short.why
    monkeypatch.setattr("motet.engines.choose.find_spec", lambda name: None)
    without = choose("auto", task, lines(), lambda _: 10, method=method, rounds=1000)
    assert not without.compiled and "motet[speed]" in without.why
    monkeypatch.setattr("motet.engines.choose.find_spec", lambda name: object())
    long = choose("auto", task, lines(), lambda _: 10, method=method, rounds=1000)
    assert (long.name, long.compiled) == ("loop", True)
    assert not choose("auto", task, lines(), lambda _: 10, compiled="no", method=method, rounds=1000).compiled


def test_a_run_that_cannot_be_compiled_says_so_where_compiling_was_asked_for() -> None:
    method = Swarm(linear(4, 1), rule="cma")
    assert not method.fused_asks()
    choice = choose("loop", method.task, lines(), lambda _: 1, compiled="yes", method=method)
    assert not choice.compiled and "not compiled, though engine.compile=yes" in choice.why
    usual = choose("loop", method.task, lines(), lambda _: 1, compiled="auto", method=method)
    assert "compile" not in usual.why


def test_a_compiled_run_is_not_continued_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("motet.engines.choose.find_spec", lambda name: None)
    method = Swarm(linear(4, 1))
    choice = choose("loop", method.task, lines(), lambda _: 1, compiled="yes", method=method)
    with pytest.raises(ValueError, match=r"numba.*\n?hint: pip install"):
        choice.build(lines())
