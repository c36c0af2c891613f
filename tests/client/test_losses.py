"""Losses: each by hand, against torch and scikit-learn, and the same whatever the padding and the engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, mean_pinball_loss, mean_poisson_deviance
from torch import Tensor, nn

from motet.client import Batch, Data, Task, compiled_steps, descend
from motet.client.curvature import safe_rate
from motet.client.losses import LOSSES, Criterion, cox
from motet.client.metrics import metrics, partial_likelihood
from motet.engines.choose import pick
from motet.vec import Vec

Z = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.5, 0.0], [0.0, 0.0, 3.0]])
Y = torch.tensor([0, 2, 2])


def wide_error(z: Tensor, y: Tensor) -> Tensor:
    """A loss of the user's own."""
    return (z - y).abs() ** 1.5


def some(name: str, rows: int, seed: int = 0) -> tuple[Criterion, Tensor, Tensor]:
    """A loss with outputs and targets that fit it."""
    draw = torch.Generator().manual_seed(seed)
    z = (
        torch.randn(rows, 3, generator=draw)
        if LOSSES[name] == "classes"
        else torch.randn(rows, generator=draw)
    )
    y: Tensor = torch.randint(0, 3, (rows,), generator=draw)
    if LOSSES[name] != "classes":
        y = torch.randint(1, 6, (rows,), generator=draw).float()  # many ties
    if name == "cox":
        y = y * torch.where(torch.rand(rows, generator=draw) < 0.6, 1.0, -1.0)
    weights = (0.5, 1.0, 2.0) if LOSSES[name] == "classes" else ()
    return Criterion(name, weights, gamma=1.5, level=0.8, scale=1.0, offset=0.0), z, y


# ---- by hand ----


def test_focal_with_gamma_zero_is_cross_entropy_and_gamma_makes_easy_rows_count_less() -> None:
    plain = Criterion("cross_entropy").of_rows(Z, Y)
    assert torch.allclose(plain, nn.functional.cross_entropy(Z, Y, reduction="none"))
    assert torch.allclose(Criterion("focal", gamma=0.0).of_rows(Z, Y), plain)
    p = torch.softmax(Z, -1)[torch.arange(3), Y]
    assert torch.allclose(Criterion("focal", gamma=2.0).of_rows(Z, Y), -((1 - p) ** 2) * p.log())


def test_class_weights_multiply_the_loss_of_each_row() -> None:
    weights = (0.25, 1.0, 4.0)
    found = Criterion("cross_entropy", weights).of_rows(Z, Y)
    expected = nn.functional.cross_entropy(Z, Y, weight=torch.tensor(weights), reduction="none")
    assert torch.allclose(found, expected)


def test_absolute_and_quantile_are_the_errors_of_median_and_quantile() -> None:
    z, y = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 3.0, 1.0])
    assert Criterion("absolute").of_rows(z, y).tolist() == [1.0, 2.0, 0.0]
    assert torch.allclose(Criterion("quantile", level=0.9).of_rows(z, y), torch.tensor([0.1, 1.8, 0.0]))
    half = Criterion("quantile", level=0.5).of_rows(z, y)
    assert torch.allclose(2 * half, Criterion("absolute").of_rows(z, y))
    mean = float(Criterion("quantile", level=0.9).of_rows(z, y).mean())
    assert mean == pytest.approx(mean_pinball_loss(y, z, alpha=0.9))


def test_poisson_is_half_the_deviance_from_a_rate_and_slopes_as_torchs_loss_does() -> None:
    counts, z = torch.tensor([0.0, 2.0, 5.0]), torch.tensor([0.1, 0.5, 2.0], requires_grad=True)
    found = Criterion("poisson").of_rows(z, counts)
    by_hand = [math.exp(0.1), math.exp(0.5) - 1 + 2 * math.log(2) - 2, math.exp(2) - 10 + 5 * math.log(5) - 5]
    assert found.tolist() == pytest.approx(by_hand, rel=1e-5)
    deviance = mean_poisson_deviance(counts, torch.exp(z.detach()))
    assert 2 * float(found.detach().mean()) == pytest.approx(deviance, rel=1e-5)
    (ours,) = torch.autograd.grad(found.sum(), z)
    (theirs,) = torch.autograd.grad(nn.functional.poisson_nll_loss(z, counts, reduction="sum"), z)
    assert torch.allclose(ours, theirs)


def test_poissons_targets_are_standardised_and_its_loss_is_of_the_counts_themselves() -> None:
    counts = torch.tensor([0.0, 2.0, 7.0])
    mean, spread = float(counts.mean()), float(counts.std())
    loss = Criterion("poisson", scale=spread, offset=mean)
    z = torch.tensor([0.3, -0.2, 0.4])  # logarithms of multiples of the mean
    found = loss.of_rows(z, (counts - mean) / spread)
    assert 2 * mean * float(found.mean()) == pytest.approx(
        mean_poisson_deviance(counts, torch.exp(z) * mean), rel=1e-4
    )
    rates = loss.numbers(z) * spread + mean
    assert torch.allclose(rates, torch.exp(z) * mean, atol=1e-5)


def test_cox_by_hand_with_tied_times() -> None:
    """Events at 2 (two rows) and 5; censored at 2 and 7. All five are watched at 2, after Breslow."""
    y = torch.tensor([2.0, 2.0, -2.0, 5.0, -7.0])
    z = torch.tensor([0.5, -0.5, 1.0, 0.2, 0.0])
    e = z.exp()
    at_two, at_five = math.log(float(e.sum())), math.log(float(e[3:].sum()))
    expected = [at_two - 0.5, at_two + 0.5, 0.0, at_five - 0.2, 0.0]
    assert cox(z, y, torch.ones(5)).tolist() == pytest.approx(expected, rel=1e-5)
    assert partial_likelihood(y.numpy(), z.numpy()) == pytest.approx(sum(expected) / 5, rel=1e-5)


def test_cox_agrees_with_lifelines() -> None:
    """lifelines' fit on one covariate has the likelihood that ours has at its coefficient, without ties."""
    import pandas as pd
    from lifelines import CoxPHFitter

    draw = np.random.default_rng(0)
    x = draw.normal(size=80)
    time, seen = draw.exponential(np.exp(-x)), draw.random(80) < 0.7
    fit = CoxPHFitter().fit(pd.DataFrame({"x": x, "t": time, "e": seen}), "t", "e")
    y, z = np.where(seen, time, -time), x * fit.params_["x"]
    assert -partial_likelihood(y, z) * 80 == pytest.approx(fit.log_likelihood_, rel=1e-6)


def test_a_batch_without_an_event_costs_nothing_and_pushes_nowhere() -> None:
    z = torch.randn(4, requires_grad=True)
    loss = cox(z, torch.tensor([-1.0, -2.0, -3.0, -3.0]), torch.ones(4)).mean()
    (slope,) = torch.autograd.grad(loss, z)
    assert float(loss.detach()) == 0 and not slope.any()


def test_many_rows_of_survival_are_laid_out_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, z, y = some("cox", 50)
    whole = cox(z, y, torch.ones(50))
    monkeypatch.setattr("motet.client.losses._AT_ONCE", 7)
    assert torch.allclose(cox(z, y, torch.ones(50)), whole)


# ---- for every loss ----


@pytest.mark.parametrize("name", LOSSES)
@given(rows=st.integers(1, 9), padding=st.integers(0, 5), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_padding_changes_neither_loss_nor_gradient(name: str, rows: int, padding: int, seed: int) -> None:
    loss, z, y = some(name, rows, seed)

    def value(more: int) -> tuple[Tensor, Tensor]:
        long_z = torch.cat([z, torch.full((more, *z.shape[1:]), 3.0)]).requires_grad_()
        long_y = torch.cat([y, torch.ones(more, dtype=y.dtype)])
        live = (torch.arange(rows + more) < rows).float()
        batch = Batch(long_z, long_y, live)
        mean = batch.mean(loss.of_rows(long_z, long_y, live))
        return mean.detach(), torch.autograd.grad(mean, long_z)[0][:rows]

    for alone, padded in zip(value(0), value(padding), strict=True):
        assert torch.allclose(alone, padded, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_leading_axes_are_many_losses_at_once(name: str) -> None:
    loss, z, y = some(name, 6)
    both = torch.stack([z, z + 0.5 * torch.randn_like(z)])
    live = torch.tensor([1.0, 1, 1, 1, 0, 0])
    found = loss.of_rows(both, torch.stack([y, y]), torch.stack([live, live]))
    for one, out in zip(both, found, strict=True):
        assert torch.allclose(loss.of_rows(one, y, live)[:4], out[:4], atol=1e-6)


def clients_of(name: str) -> list[Data]:
    """Three clients of different sizes, with rows of padding that would cost much if they counted."""
    clients = []
    for i, n in enumerate((3, 11, 7)):
        _, _, y = some(name, n, i)
        x = torch.randn(n, 4, generator=torch.Generator().manual_seed(10 + i))
        filler = torch.full((11 - n,), 2 if y.dtype == torch.int64 else 50, dtype=y.dtype)
        x, y = torch.cat([x, 9 * torch.ones(11 - n, 4)]), torch.cat([y, filler])
        clients.append(Data(x, y, torch.tensor(n), torch.tensor(i), Batch.of(x[:2], y[:2])))
    return clients


def task_of(name: str) -> Task:
    torch.manual_seed(0)
    kind: Any = LOSSES[name]
    outputs = 3 if kind == "classes" else 1
    return Task(nn.Linear(4, outputs), kind, outputs, criterion=some(name, 1)[0])


COMPILED = [
    pytest.param(name, True, fused, marks=[pytest.mark.long] * (name != "cox" and not fused))
    for name in LOSSES
    for fused in (False, True)
]


@pytest.mark.parametrize(
    ("name", "compiled", "fused"), [*((name, False, False) for name in LOSSES), *COMPILED]
)
def test_stacked_clients_train_as_they_do_alone(name: str, compiled: bool, fused: bool) -> None:
    task, clients = task_of(name), clients_of(name)
    how: dict[str, Any] = {"lr": 0.05, "epochs": 3, "batch": 4, "momentum": 0.5}
    alone = [descend(task.loss, task.w0, c, **how) for c in clients]
    tensors = [torch.stack([getattr(c, k) for c in clients]) for k in ("x", "y", "n", "seed")]

    def one(x: Tensor, y: Tensor, n: Tensor, seed: Tensor) -> Vec:
        return descend(task.loss, task.w0, Data(x, y, n, seed, Batch.of(x[:2], y[:2])), **how)

    with compiled_steps(compiled, fused=fused):
        stacked = torch.func.vmap(one)(*tensors)
    for i, w in enumerate(alone):
        assert not torch.equal(w["weight"], task.w0["weight"])  # the bias of risks is never moved
        for k in w:
            assert torch.allclose(w[k], stacked[k][i], atol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_safe_rate_lowers_every_loss(name: str) -> None:
    task, data = task_of(name), clients_of(name)[1]
    rate = safe_rate(task.curved_loss, task.w0, [data.all], 0.0)
    assert 1e-6 < rate <= 1.0
    w = descend(task.loss, task.w0, data, lr=rate, epochs=40, batch=11)
    assert task.loss(w, data.all) < task.loss(task.w0, data.all)


@pytest.mark.parametrize("name", LOSSES)
def test_the_constant_output_is_the_best_constant(name: str) -> None:
    if LOSSES[name] == "classes":
        pytest.skip("classes have frequencies")
    loss, _, y = some(name, 9)
    live = (torch.arange(9) < 7).float()
    best = loss.constant(y, live)

    def cost(z: Tensor) -> float:
        return float(Batch(y, y, live).mean(loss.of_rows(z.expand(9), y, live)))

    assert all(cost(best) <= cost(best + d) + 1e-6 for d in (-0.5, -0.05, 0.05, 0.5))


# ---- metrics of models that were trained by them ----


def measured(name: str, loss: Criterion, z: Tensor, y: Tensor) -> dict[str, Any]:
    found = metrics(LOSSES[name], z[None].numpy(), y[None].numpy(), np.ones((1, len(y))), loss.scale, loss)
    return {k: float(v[0]) for k, v in found.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_the_metric_called_loss_is_what_is_trained(name: str) -> None:
    loss, z, y = some(name, 12)
    expected = float(loss.of_rows(z.double(), y if y.dtype == torch.int64 else y.double()).mean())
    assert measured(name, loss, z, y)["loss"] == pytest.approx(expected, rel=1e-6)


def test_pinball_and_deviance_are_in_the_targets_own_unit() -> None:
    counts = np.array([3.0, 0.0, 4.0, 9.0])
    mean, spread = counts.mean(), counts.std()
    y, z = torch.tensor((counts - mean) / spread).float(), torch.tensor([0.2, -0.4, 0.1, 0.6])
    low = Criterion("quantile", level=0.1, scale=spread, offset=mean)
    found = measured("quantile", low, z, y)
    assert found["pinball"] == pytest.approx(
        mean_pinball_loss(counts, z.numpy() * spread + mean, alpha=0.1), rel=1e-5
    )
    rates = Criterion("poisson", scale=spread, offset=mean)
    found, rate = measured("poisson", rates, z, y), np.exp(z.numpy()) * mean
    assert found["deviance"] == pytest.approx(mean_poisson_deviance(counts, rate), rel=1e-5)
    assert found["mae"] == pytest.approx(np.abs(rate - counts).mean(), rel=1e-5)
    assert "pinball" not in found


def test_weighted_cross_entropy_agrees_with_scikit_learn() -> None:
    weights = (0.5, 1.0, 2.0)
    found = measured("cross_entropy", Criterion("cross_entropy", weights), Z, Y)
    each = [weights[k] for k in Y.tolist()]
    p = torch.softmax(Z.double(), -1)
    expected = log_loss(Y, p, sample_weight=each, labels=[0, 1, 2]) * sum(each) / 3
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


# ---- a user's own ----


def test_an_own_loss_sees_rows_only_and_trains_stacked_clients_too() -> None:
    task = Task(nn.Linear(4, 1), "numbers", 1, criterion=Criterion("mine:wide_error", own=wide_error))
    seen: list[Any] = []

    def watched(z: Tensor, y: Tensor) -> Tensor:
        seen.append((z.ndim, y.ndim))
        return wide_error(z, y)

    z = torch.randn(2, 5)
    found = Criterion("mine:watched", own=watched).of_rows(z, torch.zeros(2, 5))
    assert torch.allclose(found, z.abs() ** 1.5) and seen == [(1, 1)]
    data = clients_of("squared")[1]
    w = descend(task.loss, task.w0, data, lr=0.05, epochs=20)
    assert task.loss(w, data.all) < task.loss(task.w0, data.all)


def with_one_hot(z: Tensor, y: Tensor) -> Tensor:
    """Torch has no stacked form of one_hot."""
    return -(nn.functional.one_hot(y, z.shape[-1]) * z.log_softmax(-1)).sum(-1)


def test_an_own_loss_that_cannot_be_stacked_runs_with_one_client_per_thread() -> None:
    criterion = Criterion("mine:with_one_hot", own=with_one_hot)
    task = Task(nn.Linear(4, 3), "classes", 3, criterion=criterion)
    assert "the loss mine:with_one_hot cannot be computed for several clients" in task.why_not_stacked
    assert pick(task, clients=5)[0] == "threads"
    assert Task(nn.Linear(4, 1), "numbers", 1, criterion=Criterion("m:w", own=wide_error)).stackable
