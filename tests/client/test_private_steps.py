"""DP-SGD inside `descend`: a step by hand, its noise and its draws, and what it becomes without noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from motet.client import Batch, descend, descent
from motet.client.data import Data, PrivateSteps
from motet.client.descent_rule import DescentRule, sgd
from motet.client.dropout import DrawnByArithmetic, Draws, drawing, draws_here
from motet.client.optimisers import Optimiser
from motet.client.private_steps import (
    Chances,
    DrawnStep,
    clipped_sum,
    drawn_rows,
    normal,
    private_gradient,
)
from motet.vec import Vec


def squares(w: Vec, batch: Batch) -> Tensor:
    return batch.mean(0.5 * (batch.x @ w["w"] - batch.y) ** 2)


def pulled(w: Vec, batch: Batch, to: Vec) -> Tensor:
    return squares(w, batch) + 0.5 * 10 * (w - to).sq()


def rows(n: int, seed: int = 0, **more: object) -> Data:
    chance = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 2, generator=chance), torch.randn(n, generator=chance)
    return Data(x, y, torch.tensor(n), torch.tensor(seed + 7), Batch.of(x[:0], y[:0]), **more)  # type: ignore[arg-type]


def private(data: Data, noise: float, length: float, system: bool = False) -> Data:
    return replace(data, noise=torch.tensor(noise), private=PrivateSteps(length, system))


RULE = DescentRule(squares, sgd, Optimiser(), 2, False, private=PrivateSteps(1.0))
W = Vec(w=torch.tensor([1.0, 0.0]))


def test_a_step_by_hand() -> None:
    # residuals at w = (1, 0): 3 - 0 = 3 and 1 - 2 = -1; gradients 3 * (3, 4) = (9, 12) and -1 * (1, 0) = (-1, 0).
    # The first has length 15 and is cut to (0.6, 0.8); the second has length 1 and stays. Their sum is (-0.4, 0.8).
    batch = Batch.of(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([0.0, 2.0]))
    g = private_gradient(RULE, W, batch, (), torch.tensor([0.4, 0.2]), torch.tensor(4.0))
    assert g["w"].tolist() == pytest.approx([0.0, 0.25], abs=1e-6)


def test_what_a_loss_adds_beside_its_rows_is_neither_cut_nor_divided() -> None:
    rule = replace(RULE, loss=pulled)
    batch, to = Batch.of(torch.tensor([[3.0, 4.0]]), torch.tensor([0.0])), Vec(w=torch.tensor([0.0, 5.0]))
    g = private_gradient(rule, W, batch, to, torch.zeros(2), torch.tensor(2.0))
    assert g["w"].tolist() == pytest.approx([10.0 + 0.3, -50.0 + 0.4])


def test_a_step_that_draws_nobody_is_noise_alone() -> None:
    g = private_gradient(
        RULE, W, Batch.of(torch.zeros(0, 2), torch.zeros(0)), (), torch.ones(2), torch.tensor(2.0)
    )
    assert g["w"].tolist() == [0.5, 0.5]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(0.01, 5), st.integers(1, 9))
def test_one_row_moves_the_sum_by_the_length_at_most(seed: int, length: float, n: int) -> None:
    data = rows(n, seed)
    whole, fewer = Batch(100 * data.x, data.y, torch.ones(n)), Batch(100 * data.x, data.y, torch.ones(n))
    fewer.live = torch.cat([torch.ones(n - 1), torch.zeros(1)])
    sums = [clipped_sum(RULE, W, b, (), W.zeros(), length)["w"] for b in (whole, fewer)]
    assert float((sums[0] - sums[1]).norm()) <= length * (1 + 1e-4)


@pytest.mark.parametrize("way", ["alone", "stacked"])
def test_without_noise_and_with_a_long_length_full_batches_are_plain_descent(way: str) -> None:
    data = rows(12)
    how = {"lr": 0.1, "epochs": 3, "batch": 12, "momentum": 0.5, "decay": 0.1}
    plain = descend(squares, W, data, **how)  # type: ignore[arg-type]
    with_privacy = private(data, 0.0, 1e6)
    if way == "alone":
        found = descend(squares, W, with_privacy, **how)["w"]  # type: ignore[arg-type]
    else:
        stacked = torch.utils._pytree.tree_map(lambda t: torch.stack([t, t]), with_privacy)
        found = torch.func.vmap(lambda d: descend(squares, W, d, **how))(stacked)["w"][1]  # type: ignore[arg-type]
    assert torch.allclose(found, plain["w"], atol=1e-6)


def test_a_row_that_is_not_finite_counts_as_none() -> None:
    batch = Batch.of(torch.tensor([[3.0, 4.0], [math.inf, 0.0]]), torch.tensor([0.0, 2.0]))
    assert clipped_sum(RULE, W, batch, (), W.zeros(), 1.0)["w"].tolist() == pytest.approx([0.6, 0.8])


# ---- draws ----


@pytest.mark.parametrize("system", [False, True])
def test_the_noise_has_the_scale_that_is_accounted_for(system: bool) -> None:
    wide = Vec(w=torch.zeros(5000))

    def flat(w: Vec, batch: Batch) -> Tensor:
        return batch.mean(0.0 * batch.y) + 0.0 * w["w"].sum()

    data = replace(rows(40), x=torch.zeros(40, 1))
    # two steps of rate 1/2: each adds noise of deviation 3 * 0.5 to the sum, which is divided by 20 rows
    found = (
        descend(flat, wide, private(data, 3.0, 0.5, system), lr=2.0, epochs=1, batch=20)["w"].double().numpy()
    )
    expected = 2.0 * math.sqrt(2) * 3 * 0.5 / 20
    # the variance of 5000 normal numbers is within 5 of its standard errors, sqrt(2 / 5000)
    assert found.var() / expected**2 == pytest.approx(1, abs=5 * math.sqrt(2 / 5000))
    assert abs(found.mean()) < 5 * expected / math.sqrt(5000)
    assert (abs(found) < expected).mean() == pytest.approx(0.6827, abs=5 * math.sqrt(0.22 / 5000))


def test_noise_differs_by_step_client_and_loss_and_is_the_same_again() -> None:
    seed = torch.tensor([1, 2])
    draws = [normal(Chances.of(seed, salt).noise[:, None], step, 4) for salt in (1, 2) for step in (0, 1)]
    assert len(np.unique(torch.cat(draws).numpy())) == 32
    assert torch.equal(draws[0], normal(Chances.of(seed, 1).noise[:, None], 0, 4))
    chances = Chances.of(seed, 1)
    assert not torch.equal(chances.sample, chances.noise)


def test_rows_are_drawn_by_themselves_at_the_rate() -> None:
    steps, n = torch.arange(2000)[:, None], 10
    drawn = drawn_rows(torch.tensor(5), steps, torch.tensor(n), torch.tensor(0.3), 13).numpy()
    assert not drawn[:, n:].any()
    assert drawn[:, :n].mean() == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / 20_000))
    sizes = drawn.sum(1)  # of a binomial distribution, not of one size
    assert sizes.var() == pytest.approx(n * 0.21, rel=0.2)
    assert drawn_rows(torch.tensor(5), 0, torch.tensor(n), torch.tensor(1.0), n).all()


def test_the_system_s_noise_is_another_each_time_and_a_seed_s_is_not() -> None:
    def trained(system: bool) -> list[float]:
        found: list[float] = descend(squares, W, private(rows(8), 1.0, 1.0, system), lr=0.1, batch=4)[
            "w"
        ].tolist()
        return found

    assert trained(True) != trained(True)
    assert trained(False) == trained(False)


def test_each_row_has_draws_of_its_own_and_padding_changes_none() -> None:
    """Half of a row's inputs are dropped, others in each row; what is drawn for a row does not depend on how many there
    are."""

    def loss(u: Vec, batch: Batch, given: Any = None) -> Tensor:
        kept = torch.nn.functional.dropout(batch.x, 0.5, True)
        return (kept * u["a"]).sum(-1).mul(batch.live).sum()

    class Rule:
        def value(self, u: Vec, batch: Batch, given: Any) -> Tensor:
            draws = draws_here()
            assert draws is not None
            with DrawnByArithmetic(draws):
                return loss(u, batch)

    def summed(rows: int, step: int = 0) -> Tensor:
        u, x = Vec(a=torch.ones(400)), torch.ones(rows, 400)
        batch = Batch(x, torch.zeros(rows), torch.ones(rows))
        with drawing(Draws(torch.tensor(7), step)):
            found: Tensor = clipped_sum(Rule(), u, batch, None, u.zeros(), 1e9)["a"]  # type: ignore[arg-type]
        return found

    one, two, three = summed(1), summed(2), summed(3)
    assert set(one.tolist()) == {0.0, 2.0} and abs(float(one.mean()) - 1) < 0.3
    second, third = two - one, three - two
    assert all(set(row.tolist()) == {0.0, 2.0} for row in (second, third))
    assert not torch.equal(one, second) and not torch.equal(second, third)
    assert not torch.equal(one, summed(1, step=1)) and torch.equal(one, summed(1))


def dropping(u: Vec, batch: Batch) -> Tensor:
    """A linear model that sees half of each row's numbers."""
    draws = draws_here()
    assert draws is not None
    with DrawnByArithmetic(draws):
        seen = torch.nn.functional.dropout(batch.x, 0.5, True)
    return batch.mean((seen @ u["w"] - batch.y) ** 2)


def wide_rows(n: int, seed: int) -> Data:
    return replace(rows(n, seed), x=torch.randn(n, 40, generator=torch.Generator().manual_seed(seed)))


def test_with_dropout_too_one_row_moves_a_step_by_the_length_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows the draws must not see by all the other rows whether one was drawn."""
    data, w = private(wide_rows(6, 0), 0.0, 0.5), Vec(w=torch.ones(40))

    def after(drawn: list[int]) -> Tensor:
        step = DrawnStep(0, torch.tensor(drawn), torch.zeros(40))
        monkeypatch.setattr(descent, "private_batches", lambda *_: iter([step]))
        found: Tensor = descend(dropping, w, data, lr=3.0, batch=3)["w"]  # 3 rows are expected in a batch
        return found

    for whole, fewer in (([0, 1, 2, 5], [1, 2, 5]), ([1, 3, 4], [1, 4]), ([2, 4], [2])):
        assert 0 < float((after(whole) - after(fewer)).norm()) <= 0.5 * (1 + 1e-4)


def test_rows_draw_the_same_alone_and_stacked() -> None:
    some = [private(wide_rows(n, n), 0.7, 0.5) for n in (9, 9)]
    some[1] = replace(some[1], seed=torch.tensor(77))
    how: dict[str, Any] = {"lr": 0.1, "epochs": 3, "batch": 3}
    w = Vec(w=torch.ones(40))
    alone = [descend(dropping, w, d, **how)["w"] for d in some]
    stacked = torch.utils._pytree.tree_map(lambda *t: torch.stack(t), *some)
    together = torch.func.vmap(lambda d: descend(dropping, w, d, **how))(stacked)["w"]
    assert torch.allclose(torch.stack(alone), together, atol=1e-5)
