"""CMA-ES and natural evolution strategies: rates as published, an epoch by hand, what never changes, where they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.parts.searches import (
    CovarianceAdaptation,
    NaturalStrategy,
    PointSearch,
    Rates,
    initial_search,
    utilities,
)
from motet.parts.surrogates import Quadratic, Surrogate, coefficients, fitted, ridge
from motet.parts.swarms import UniformDraws

RULES = [CovarianceAdaptation, NaturalStrategy, Surrogate]


def begun(
    rule: type[PointSearch], mean: Any, alpha: float = 0.5, searches: int = 1, loss: Any = None
) -> dict[str, Any]:
    at = torch.tensor(mean, dtype=torch.float64).expand(searches, 1, len(mean)).clone()
    draws = UniformDraws.seeded(3, searches)
    first = np.array([[(loss or bowl)(m) for m in one] for one in at.numpy()])
    return initial_search(3, at, first, 0, draws.positions(), alpha)


def bowl(x: Any) -> Any:
    """Long and rotated: 1 : 100 along (1, 1) and (1, -1)."""
    a, b = x[..., 0] + x[..., 1], x[..., 0] - x[..., 1]
    return a**2 + 100 * b**2 + np.square(x[..., 2:] - 1).sum(-1)


def after(
    rule: type[PointSearch], s: Any, epochs: int, loss: Any = bowl, many: int = 12, rounds: int = 1
) -> Any:
    for _ in range(rounds):
        search = rule(s, many, epochs)
        for _ in range(epochs):
            points = search.candidates()
            search.accept(loss(points)[:, :many])
        s = search.state()
    return s


@pytest.mark.parametrize("rule", RULES)
def test_the_bottom_of_a_long_bowl_is_found(rule: type[PointSearch]) -> None:
    s = after(rule, begun(rule, [3.0, -1.0, 0.0]), 150 if rule is not NaturalStrategy else 400)
    assert float(s["loss"]) < 1e-6
    assert s["theta"][0, 0].tolist() == pytest.approx([0, 0, 1], abs=1e-2)


@pytest.mark.parametrize("rule", RULES)
def test_the_ends_of_rounds_change_no_bit(rule: type[PointSearch]) -> None:
    """The state is all there is: a search goes on from it as if it had not stopped."""
    one, many = (after(rule, begun(rule, [3.0, -1.0]), n, rounds=24 // n) for n in (24, 3))
    assert one.keys() == many.keys() and all(torch.equal(one[k], many[k]) for k in one)


@pytest.mark.parametrize("rule", RULES)
def test_searches_side_by_side_know_nothing_of_each_other(rule: type[PointSearch]) -> None:
    both = after(rule, begun(rule, [3.0, -1.0], searches=2), 12)
    alone = after(rule, begun(rule, [3.0, -1.0]), 12)
    assert all(
        torch.allclose(both[k][:1], alone[k], rtol=1e-12) for k in (*rule.own, "theta", "loss", "mean")
    )
    assert not torch.equal(both["theta"][0], both["theta"][1])


@pytest.mark.parametrize("rule", [CovarianceAdaptation, NaturalStrategy])
@settings(max_examples=10, deadline=None)
@given(shift=st.floats(-100, 100), power=st.sampled_from([0.5, 1.0, 3.0]))
def test_only_the_order_of_losses_counts(rule: type[PointSearch], shift: float, power: float) -> None:
    def other(x: Any) -> Any:
        return 50 * bowl(x) ** power + shift

    a, b = (after(rule, begun(rule, [2.0, 1.0], loss=f), 15, f) for f in (bowl, other))
    assert torch.equal(a["mean"], b["mean"]) and torch.equal(a["theta"], b["theta"])


def test_cma_does_not_mind_how_the_axes_lie() -> None:
    """In expectation; here over seeds: a rotated bowl takes about as long as a straight one."""

    def straight(x: Any) -> Any:
        return 2 * x[..., 0] ** 2 + 200 * x[..., 1] ** 2 + np.square(x[..., 2:] - 1).sum(-1)

    found = [
        after(CovarianceAdaptation, begun(CovarianceAdaptation, [3.0, -1.0]), 80, f) for f in (bowl, straight)
    ]
    assert all(float(s["loss"]) < 1e-9 for s in found)


def test_rates_are_those_of_the_tutorial() -> None:
    """Ten samples, ten numbers, by hand."""
    r = Rates.of(10, 10)
    raw = np.log(5.5) - np.log([1, 2, 3, 4, 5])
    mass = raw.sum() ** 2 / (raw**2).sum()
    assert r.parents == 5 and r.mass == pytest.approx(mass) and r.weights[:5].sum() == pytest.approx(1)
    assert r.weights[:5] == pytest.approx(raw / raw.sum())
    assert r.c_step == pytest.approx((mass + 2) / (10 + mass + 5))
    assert r.c_path == pytest.approx((4 + mass / 10) / (10 + 4 + 2 * mass / 10))
    assert r.c_one == pytest.approx(2 / (11.3**2 + mass))
    assert r.c_many == pytest.approx(2 * (0.25 + mass + 1 / mass - 2) / (144 + mass))
    below = np.log(5.5) - np.log([6, 7, 8, 9, 10])
    mass_below = below.sum() ** 2 / (below**2).sum()
    least = min(
        1 + r.c_one / r.c_many, 1 + 2 * mass_below / (mass + 2), (1 - r.c_one - r.c_many) / (10 * r.c_many)
    )
    assert r.weights[5:] == pytest.approx(below / -below.sum() * least)


def test_an_epoch_of_natural_strategies_by_hand() -> None:
    search = NaturalStrategy(begun(NaturalStrategy, [1.0, 2.0]), 5, 1)
    points = search.candidates()
    z = UniformDraws.seeded(3, 1).normal(4, 2)[0]
    assert points[0, :4] == pytest.approx(np.array([1.0, 2.0]) + 0.5 * z)
    assert points[0, 4].tolist() == [1.0, 2.0] == points[0, 5].tolist()  # the mean, and the best so far
    loss = bowl(points)[:, :5]
    search.accept(loss)
    u, best = utilities(4), z[loss[0, :4].argsort()]
    rate = (3 + np.log(2)) / (5 * np.sqrt(2))
    assert search.mean[0] == pytest.approx(np.array([1.0, 2.0]) + 0.5 * u @ best)
    assert search.lengths[0] == pytest.approx(0.5 * np.exp(rate / 2 * u @ (best**2 - 1)))


@pytest.mark.parametrize("rule", RULES)
def test_losses_that_are_not_finite_come_last(rule: type[PointSearch]) -> None:
    def cliff(x: Any) -> Any:
        return np.where(x[..., 0] > 3.2, np.inf, bowl(x))

    s = after(rule, begun(rule, [3.0, -1.0], loss=cliff), 60, cliff)
    assert all(torch.isfinite(v).all() for k, v in s.items() if k != "seen") and float(s["loss"]) < 1


@pytest.mark.parametrize("rule", RULES)
def test_other_clients_are_found_out(rule: type[PointSearch]) -> None:
    search = rule(begun(rule, [3.0, -1.0]), 6, 2)
    search.candidates()
    assert not search.others_answered(search.loss[:, 0]) and search.others_answered(search.loss[:, 0] + 1)
    search.replace_losses(np.array([[7.0]]))
    assert search.state()["loss"].tolist() == [[7.0]]


def test_under_noise_the_mean_counts_and_not_the_luckiest_point() -> None:
    search = CovarianceAdaptation(begun(CovarianceAdaptation, [3.0, -1.0]), 6, 1, noisy=True)
    points = search.candidates()
    search.accept(np.array([[-99.0, 0, 0, 0, 0, 5]]))
    assert np.array_equal(search.theta[0, 0], points[0, 5]) and search.loss[0, 0] == 5


# ---- the quadratic ----


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 999))
def test_as_many_losses_as_coefficients_tell_a_quadratic(n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    root = draw.normal(size=(n + 2, n))
    h, g = root.T @ root, draw.normal(size=n)
    x = draw.normal(size=(coefficients(n) + n, n))
    loss = 3 + x @ g + np.einsum("ij,jk,ik->i", x, h, x) / 2
    found = fitted(x, loss)
    assert found.curvature == pytest.approx(h, abs=1e-6 * np.abs(h).max())
    assert found.centre + found.steps(np.empty(0))[0] == pytest.approx(-np.linalg.solve(h, g), abs=1e-3)


def test_a_ridge_is_chosen_where_there_is_noise_alone() -> None:
    draw = np.random.default_rng(0)
    a = np.hstack([np.ones((60, 1)), draw.normal(size=(60, 40))])
    exact, noise = a @ draw.normal(size=41), draw.normal(size=60)
    assert np.linalg.norm(a @ ridge(a, exact)[0] - exact) < 1e-10
    plain = np.linalg.lstsq(a, noise, rcond=None)[0]
    assert np.linalg.norm(ridge(a, noise)[0]) < 0.7 * np.linalg.norm(plain)


def test_noisy_losses_still_lead_near_the_bottom() -> None:
    noise = np.random.default_rng(1)

    def noisy(x: Any) -> Any:
        return bowl(x) + 0.3 * noise.normal(size=x.shape[:-1])

    search = Surrogate(begun(Surrogate, [3.0, -1.0], 1.0, loss=noisy), 12, 60, noisy=True)
    for _ in range(60):
        search.accept(noisy(search.candidates())[:, :12])
    assert bowl(search.theta[0, 0]) < 0.3  # it began at 1604


def test_a_saddle_is_left_downwards() -> None:
    found = Quadratic(np.zeros(2), 0.0, np.array([1.0, 1.0]), np.diag([2.0, -2.0]))
    step = found.steps(np.empty(0))[0]
    assert step == pytest.approx([-0.5, -0.5])
