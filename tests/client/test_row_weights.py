"""Weights of rows: a row of weight 2 counts as two, in losses, steps, scores, and in the mean over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from loss_ways import LOSSES, task_of
from motet.client import Batch, ClientData, Task, descend
from motet.client.losses import Criterion
from motet.client.metrics import OwnMetric, metrics
from motet.client.visit import examples
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.parts import particle_losses
from motet.stacking.stack import StackRows, fitted
from rounds import one_number, turn

WEIGHTS = st.lists(st.integers(1, 4), min_size=3, max_size=9)
ENGINES = {"loop": Loop, "vmap": Vmap}


def weighed(rows: Batch, weights: Any) -> ClientData:
    """One client with these rows in all parts."""
    held = Batch(rows.x, rows.y, torch.as_tensor(weights, dtype=torch.float32))
    return ClientData(held, held, held, weighted=True)


def repeated(rows: Batch, times: Any) -> ClientData:
    """The same with every row so many times."""
    at = torch.repeat_interleave(torch.arange(len(rows)), torch.as_tensor(times))
    held = Batch.of(rows.x[at], rows.y[at])
    return ClientData(held, held, held)


def some_rows(many: int, kind: str = "classes") -> Batch:
    x = torch.linspace(-2, 2, many * 6).reshape(6, many).T.sin()
    y = torch.arange(many) % 3
    return Batch.of(x, y if kind == "classes" else x[:, 0] - y / 2)


# ---- by hand ----


def test_the_loss_of_a_batch_is_weights_times_losses_by_rows() -> None:
    batch = Batch(torch.zeros(4, 1), torch.zeros(4), torch.tensor([2.0, 0.5, 0.5, 0.0]))
    assert float(batch.mean(torch.tensor([1.0, 2.0, 4.0, 99.0]))) == pytest.approx((2 + 1 + 2) / 3)
    assert float(batch.evened().live.sum()) == pytest.approx(3)  # the last one is padding


def test_a_step_by_hand() -> None:
    """(w - 3)^2 of weight 3 and (2 w)^2 of weight 1, at w = 1: slopes -4 and 8, mean (3 * -4 + 8) / 4 = -1."""
    held = weighed(Batch.of(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 0.0])), [3.0, 1.0])
    task = one_number()
    w = descend(task.loss, task.w0, examples(held, 0, "a", 0), lr=0.1, batch=8)
    assert float(next(iter(w.values()))) == pytest.approx(1.1)


def test_batches_of_one_row_are_weighted_too() -> None:
    """Divided by its own weight, a row alone would count as any other."""
    held = weighed(Batch.of(torch.tensor([[1.0], [1.0]]), torch.tensor([2.0, 2.0])), [3.0, 1.0])
    task = one_number()
    w = descend(task.loss, task.w0, examples(held, 0, "a", 0), lr=0.1, batch=1)
    # 1 - w shrinks by 1 - 0.2 weight in each step: weights are 1.5 and 0.5
    assert float(next(iter(w.values()))) == pytest.approx(2 - 0.7 * 0.9)


def test_clients_count_by_their_weights_in_the_mean() -> None:
    one = Batch.of(torch.tensor([[1.0]]), torch.tensor([3.0]))
    two = Batch.of(torch.tensor([[2.0]]), torch.tensor([0.0]))
    clients = {"a": weighed(one, [3.0]), "b": weighed(two, [1.0])}
    method = FedAvg(one_number(), lr=0.1)
    for make in ENGINES.values():
        engine = make(clients)
        w = play(engine, method, method.task.w0, turn(engine, 0))  # clients go to 1.4 and 0.2
        assert float(next(iter(w.values()))) == pytest.approx((3 * 1.4 + 0.2) / 4)


def test_accuracy_auc_and_rmse_by_hand() -> None:
    p = np.log(np.array([[[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]]]))  # the second row is wrong
    found = metrics("classes", p, np.array([[0, 0, 1]]), np.array([[1.0, 3.0, 2.0]]))
    assert float(found["accuracy"][0]) == pytest.approx(3 / 6) and float(found["n"][0]) == 3
    assert float(found["balanced"][0]) == pytest.approx((1 / 4 + 1) / 2)
    assert float(found["auc"][0]) == 1 and float(found["pairs"][0]) == 2
    found = metrics("numbers", np.array([[1.0, 4.0]]), np.array([[0.0, 2.0]]), np.array([[3.0, 1.0]]))
    assert float(found["rmse"][0]) == pytest.approx(np.sqrt((3 + 4) / 4))
    assert float(found["mae"][0]) == pytest.approx((3 + 2) / 4)


def test_a_constant_is_the_quantile_of_weighted_rows() -> None:
    y, live = torch.tensor([1.0, 2.0, 3.0, 9.0]), torch.tensor([1.0, 1.0, 6.0, 0.0])
    assert float(Criterion("quantile", level=0.5).constant(y, live)) == 3
    assert float(Criterion("quantile", level=0.2).constant(y, live)) == 2
    assert float(Criterion("squared").constant(y, live)) == pytest.approx(21 / 8)


# ---- a weight of 2 is two rows ----


ROW_LOSSES = [name for name, kind in LOSSES.items() if kind != "survival"]


def test_the_property_below_on_stacked_clients() -> None:
    for loss in ("cross_entropy", "quantile"):
        check_repeated([1, 4, 2, 1, 3], loss, Vmap)


@settings(max_examples=20, deadline=None)
@given(weights=WEIGHTS, loss=st.sampled_from(ROW_LOSSES))
def test_a_full_batch_of_weighted_rows_is_one_of_repeated_rows(weights: list[int], loss: str) -> None:
    check_repeated(weights, loss, Loop)


def check_repeated(weights: list[int], loss: str, make: Any) -> None:
    task, rows, other = task_of(loss, 6, 3), some_rows(len(weights), LOSSES[loss]), some_rows(4, LOSSES[loss])
    method, found = FedAvg(task, lr=0.1, batch=64, epochs=2), []
    for held in (weighed, repeated):
        engine = make({"a": held(rows, weights), "b": held(other, [1] * 4)})
        state = play(engine, method, task.w0, turn(engine, 0))
        found.append(
            (state, engine.evaluate(method, state, turn(engine, 0), "test", ("global",))[1]["global"])
        )
    (one, first), (two, second) = found
    assert float((one - two).sq().sqrt()) < 1e-5
    for name in first.keys() - {"n", "pairs"}:
        a, b = (scores[name].nan_to_num(-1) for scores in (first, second))
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(weights=st.lists(st.floats(0.01, 50), min_size=4, max_size=12), seed=st.integers(0, 99))
def test_weighted_metrics_are_those_of_scikit_learn_and_blind_to_padding(
    weights: list[float], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    w, many = np.array(weights, np.float64), len(weights)
    y, p = np.append([0, 1], draw.integers(0, 2, many - 2)), draw.choice([0.1, 0.3, 0.6, 0.9], many)
    pad = draw.integers(0, 3)
    z = np.log(np.stack([1 - p, p], 1))
    padded = (np.pad(z, ((0, pad), (0, 0))), np.pad(y, (0, pad)), np.pad(w, (0, pad)))
    found = metrics("classes", *(v[None] for v in padded))
    expected = {
        "accuracy": sk.accuracy_score(y, p > 0.5, sample_weight=w),
        "balanced": sk.balanced_accuracy_score(y, p > 0.5, sample_weight=w),
        "auc": sk.roc_auc_score(y, p, sample_weight=w),
        "f1": sk.f1_score(y, p > 0.5, sample_weight=w, average="macro", zero_division=0.0),
        "brier": sk.brier_score_loss(y, p, sample_weight=w),
        "loss": sk.log_loss(y, p, sample_weight=w),
    }
    assert {k: float(found[k][0]) for k in expected} == pytest.approx(expected, rel=1e-6)
    truth, guess = draw.normal(size=(2, many))
    found = metrics("numbers", np.pad(guess, (0, pad))[None], np.pad(truth, (0, pad))[None], padded[2][None])
    assert float(found["r2"][0]) == pytest.approx(sk.r2_score(truth, guess, sample_weight=w))
    assert float(found["mae"][0]) == pytest.approx(sk.mean_absolute_error(truth, guess, sample_weight=w))


# ---- weights of 1 are none ----


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_equal_weights_give_the_bits_of_rows_without_weights(
    engine: str, weight: float, task: Task, clients_data: dict[str, ClientData]
) -> None:
    parts = ("train", "val", "test")
    same = {
        c: replace(
            d, weighted=True, **{p: replace(getattr(d, p), live=getattr(d, p).live * weight) for p in parts}
        )
        for c, d in clients_data.items()
    }
    method, found = FedAvg(task), []
    for clients in (clients_data, same):
        run = ENGINES[engine](clients)
        state = play(run, method, task.w0, turn(run, 0))
        found.append((state, run.evaluate(method, state, turn(run, 0), "test")[1]["global"]))
    (one, first), (two, second) = found
    assert weight != 1 or all(torch.equal(one[k], two[k]) for k in one)
    assert float((one - two).sq().sqrt()) < 1e-6
    for name in first if weight == 1 else ():
        torch.testing.assert_close(first[name], second[name], rtol=0, atol=0, equal_nan=True)


# ---- what does not train by descent ----


def test_a_swarm_measures_weighted_rows_as_repeated_ones() -> None:
    task, rows = one_number(), Batch.of(torch.tensor([[1.0], [2.0], [0.5]]), torch.tensor([3.0, 0.0, 1.0]))
    theta = torch.tensor([[[0.5], [2.0]]], dtype=torch.float64)
    a, b = (examples(make(rows, [1, 3, 2]), 0, "a", 0) for make in (weighed, repeated))
    one, two = (particle_losses.mean_losses(task, theta, d) for d in (a, b))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)
    exact = [particle_losses.squared_errors(particle_losses.gram_root(task, d), theta) for d in (a, b)]
    torch.testing.assert_close(exact[0], two, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(exact[1], two, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("family", ["linear", "boosting", "forest"])
def test_models_of_a_stack_learn_from_weights(family: str) -> None:
    """Trees count rows for the least size of a leaf, and draw them: only a linear model is that of repeated rows."""
    draw = np.random.default_rng(0)
    x, y, w = draw.normal(size=(80, 2)), draw.integers(0, 2, 80), draw.integers(1, 4, 80)
    at, kinds = np.repeat(np.arange(80), w), dict.fromkeys("ab", "number")
    one, two, even = (
        fitted(family, StackRows(*rows[:2], kinds, (0, 1), *rows[2:]), 0, trees=5).predict_proba(x)
        for rows in ((x, y, w.astype(float)), (x[at], y[at]), (x, y))
    )
    assert np.abs(one - even).max() > 0.01
    assert family != "linear" or np.abs(one - two).max() < 1e-4


def test_an_own_metric_is_given_the_weights_that_it_takes() -> None:
    def share_above(y: Any, p: Any, sample_weight: Any = None) -> float:
        return float(np.average(p > y, weights=sample_weight))

    own = OwnMetric("m:share_above", share_above)
    y, p, live = np.array([[0.0, 0.0, 0.0]]), np.array([[1.0, -1.0, 1.0]]), np.array([[3.0, 1.0, 0.0]])
    assert own.takes_weights and own.of(["a"], y, p, live).tolist() == [0.75]
    assert not OwnMetric("m:f", lambda y, p: 0.0).takes_weights
