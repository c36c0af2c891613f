"""IFCA, FedSoft, CFL, FedAMP and FedFomo: who learns from whom, by hand and in limits.

One number. Client a has one example (1, 3): loss (w - 3)^2, slope 2 (w - 3). Client b has three examples (2, 0): loss
4 w^2, slope 8 w. lr is 0.1.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from motet.core import Turn, average
from motet.engines.driver import play
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.cfl import CFL
from motet.methods.fedamp import FedAMP, attention
from motet.methods.fedavg import FedAvg
from motet.methods.fedfomo import FedFomo
from motet.methods.fedprox import FedProx
from motet.methods.fedsoft import FedSoft
from motet.methods.ifca import IFCA
from motet.methods.local import Local
from motet.parts.several_models import least_of, other_start, shared_means
from motet.vec import Vec
from rounds import TWO, after, apart, one_number, turn

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def number(tree: Any) -> float:
    (value,) = tree.values()
    return float(value)


def numbers(*values: float) -> list[Vec]:
    """Models of one number."""
    return [Vec(weight=torch.tensor([[v]])) for v in values]


class Even(FedAvg):
    """FedAvg whose clients count alike."""

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))


# ---- several models ----


def test_other_starts_have_the_same_sizes_and_other_signs(task: Any) -> None:
    one, two = other_start(task.w0, 1), other_start(task.w0, 2)
    assert all(torch.equal(a.abs(), task.w0[k].abs()) for k, a in one.items())
    assert apart(one, task.w0) > 0 and apart(one, two) > 0 and apart(other_start(task.w0, 0), task.w0) == 0
    assert torch.equal(one["0.bias"], task.w0["0.bias"])
    assert 0 < apart(other_start(task.w0, 1, 0.1), task.w0) < apart(one, task.w0)


def test_equal_losses_are_decided_by_chance_and_others_are_not() -> None:
    same, chance = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([0.5, 0.1, 0.9])
    assert least_of(same, chance).tolist() == [0, 1, 0]
    assert least_of(torch.tensor([1.0, 2.0, 2.0]), chance).tolist() == [1, 0, 0]


def test_a_model_that_nobody_chose_stays() -> None:
    found = shared_means(numbers(1.0, 7.0), numbers(0.5, 0.0), torch.tensor([0.25, 0.0]))
    assert [number(w) for w in found] == [2.0, 7.0]


# ---- IFCA ----


@engines
@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ((2.0, 0.5), [2.2, 0.1]),  # a takes the first and goes to 2.2, b the second and goes to 0.1
        ((0.9, 9.0), [0.465, 9.0]),  # both take the first: (1.32 + 3 * 0.18) / 4
    ],
)
def test_a_round_of_ifca_by_hand(engine: Any, models: Any, expected: Any) -> None:
    method, here = IFCA(one_number(), lr=0.1, batch=4, k=2), engine(TWO)
    found = play(here, method, numbers(*models), turn(here, 0))
    assert [number(w) for w in found] == pytest.approx(expected, abs=1e-5)
    (own,) = method.personal(found, (), here.data("a")).args
    assert number(own) == pytest.approx(expected[0], abs=1e-5)


def test_ifca_with_one_model_is_fedavg(task: Any, clients_data: Any) -> None:
    (found,) = after(IFCA(task, k=1), Loop(clients_data), 2)
    assert apart(found, after(FedAvg(task), Loop(clients_data), 2)) < 1e-6


def test_ifca_tells_apart_two_kinds_of_clients(task: Any, clients_data: Any) -> None:
    """Clients of even and of odd numbers disagree on which centre is which class."""
    method, here = IFCA(task, k=2, lr=0.3), Loop(clients_data)
    models = after(method, here, 8)
    chosen = [int(method.choice(models, here.data(c)).argmax()) for c in here.clients if here.data(c).n > 15]
    assert len(set(chosen[0::2])) == len(set(chosen[1::2])) == 1 and chosen[0] != chosen[1]


# ---- FedSoft ----


@engines
def test_a_round_of_fedsoft_by_hand(engine: Any) -> None:
    # a fits the first model and b the second; with smooth 0.25 their shares are 1 / 1.25 and 0.25 / 1.25.
    # a starts at 0.8 * 2 + 0.2 * 0.5 = 1.7: slope -2.6, and lam 1 pulls with 0.8 (1.7 - 2) + 0.2 (1.7 - 0.5) = 0: 1.96.
    # b starts at 0.8 * 0.5 + 0.2 * 2 = 0.8: slope 6.4, pull 0.8 * 0.3 - 0.2 * 1.2 = 0: 0.16.
    # First model: (0.8 * 1.96 + 3 * 0.2 * 0.16) / (0.8 + 3 * 0.2); second: (0.2 * 1.96 + 3 * 0.8 * 0.16) / (0.2 + 2.4).
    method, here = FedSoft(one_number(), lr=0.1, batch=4, k=2, lam=1.0, smooth=0.25), engine(TWO)
    found = play(here, method, numbers(2.0, 0.5), turn(here, 0))
    assert [number(w) for w in found] == pytest.approx(
        [(1.568 + 0.096) / 1.4, (0.392 + 0.384) / 2.6], abs=1e-5
    )
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([1.96, 0.16], abs=1e-5)


def test_fedsoft_with_one_cluster_is_fedprox(task: Any, clients_data: Any) -> None:
    (found,) = after(FedSoft(task, k=1, lam=0.5), Loop(clients_data), 2)
    assert apart(found, after(FedProx(task, mu=0.5), Loop(clients_data), 2)) < 1e-6


# ---- CFL ----


@engines
def test_cfl_splits_clients_that_pull_apart_and_each_then_trains_alone(engine: Any) -> None:
    # Updates 0.4 and -0.8: their mean 0.2 is shorter than 0.4 * 0.8, so that the group is split at once.
    method, here = CFL(one_number(), lr=0.1, batch=4, first=0), engine(TWO)
    s = after(method, here, 1)
    assert s["groups"] == {"a": 0, "b": 1} and [number(m) for m in s["models"]] == pytest.approx([1.4, 0.2])
    alone = Loop(TWO)
    after(Local(one_number(), lr=0.1, batch=4), alone, 3)
    s = after(method, engine(TWO), 3)
    assert [number(m) for m in s["models"]] == pytest.approx([number(alone.keeps.get(c)) for c in "ab"])
    assert method.global_model(s) is None


def test_cfl_that_never_splits_is_fedavg_with_clients_that_count_alike(task: Any, clients_data: Any) -> None:
    s = after(CFL(task, eps=1e-9, first=0), Loop(clients_data), 3)
    assert len(s["models"]) == 1
    assert apart(s["models"][0], after(Even(task), Loop(clients_data), 3)) < 1e-6


def test_a_group_of_cfl_is_not_split_while_one_of_its_clients_is_away(clients_data: Any) -> None:
    method, here = CFL(one_number(), lr=0.1, batch=4, first=1), Loop(TWO | {"c": TWO["a"]})
    s = after(method, here, 1)
    two = Turn(1, ("a", "b"), here.clients, 5)
    assert len(play(here, method, s, two)["models"]) == 1
    assert len(play(here, method, s, turn(here, 1))["models"]) == 2


# ---- FedAMP ----


def test_fedamps_attention_by_hand() -> None:
    # Squared distances 1, 9 and 4, their mean 14 / 3; sigma 3 / 14 makes the width 1.
    xi = attention(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64), 3 / 14, 0.9)
    assert xi[0].tolist() == pytest.approx(
        [1 - 0.3 * math.exp(-1) - 0.3 * math.exp(-9), 0.3 * math.exp(-1), 0.3 * math.exp(-9)]
    )
    assert xi.sum(1).tolist() == pytest.approx([1, 1, 1])


@engines
def test_fedamp_pulls_to_the_mixture_by_hand(engine: Any) -> None:
    # Two epochs from u = 1, lam 1. a: 1.4, then 2 (1.4 - 3) + (1.4 - 1) = -2.8: 1.68. b: 0.2, then 1.6 - 0.8: 0.12.
    here = engine(TWO)
    after(FedAMP(one_number(), lr=0.1, batch=4, epochs=2, lam=1.0), here, 1)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([1.68, 0.12])


def test_fedamp_without_attention_is_local_training(task: Any, clients_data: Any) -> None:
    here, alone = Loop(clients_data), Loop(clients_data)
    after(FedAMP(task, alpha=0.0, lam=0.0), here, 3)
    after(Local(task), alone, 3)
    assert apart(here.keeps.get("c04"), alone.keeps.get("c04")) < 1e-7


def test_fedamp_with_all_attention_starts_from_the_simple_mean(task: Any, clients_data: Any) -> None:
    s = after(FedAMP(task, alpha=1.0, lam=0.0, sigma=1e9), Loop(clients_data), 2)
    mean = sum(s["models"].values(), task.w0.zeros()) / len(s["models"])
    assert apart(mean, after(Even(task), Loop(clients_data), 2)) < 1e-5


# ---- FedFomo ----


def test_fedfomos_weights_and_a_step_by_hand() -> None:
    # a at 1 has the loss 4. Offered 2 (loss 1, gain 3 / 1), 5 (loss 4, gain 0) and 2.5 (0.25, gain 3.75 / 1.5 = 2.5):
    # weights 3 / 5.5, 0, 2.5 / 5.5; it moves to (6 + 6.25) / 5.5 and takes a step.
    method, here = FedFomo(one_number(), lr=0.1, batch=4, offered=3), Loop(TWO)
    after(method, here, 1)
    theta, data = Vec(weight=torch.tensor([[1.0]])), here.data("a")
    weights = method.weights(numbers(2.0, 5.0, 2.5), theta, data)
    assert weights.tolist() == pytest.approx([3 / 5.5, 0, 2.5 / 5.5], abs=1e-6)
    start = (6 + 6.25) / 5.5
    reply, own = method.train(numbers(2.0, 5.0, 2.5), theta, data)
    assert number(reply) == number(own) == pytest.approx(start - 0.2 * (start - 3), abs=1e-5)


def test_a_client_whom_no_model_helps_trains_alone(task: Any, clients_data: Any) -> None:
    one = {"c05": clients_data["c05"]}
    here, alone = Loop(one), Loop(one)
    after(FedFomo(task, offered=2), here, 1)
    after(Local(task), alone, 1)
    assert apart(here.keeps.get("c05"), alone.keeps.get("c05")) < 1e-7


def test_a_client_is_offered_others_models_and_never_its_own(task: Any) -> None:
    method = FedFomo(one_number(), offered=3)
    models = {c: Vec(weight=torch.tensor([[float(i)]])) for i, c in enumerate("abcdef", start=10)}
    drawn = [[number(m) for m in method.drawn(models, "a", seed)] for seed in range(6)]
    assert all(10.0 not in d and len(set(d)) == 3 for d in drawn) and len({tuple(d) for d in drawn}) > 1
    assert [number(m) for m in method.drawn({"a": models["a"], "b": models["b"]}, "a", 0)] == [11.0, 1.0, 1.0]
