"""SCAFFOLD, FedDyn, pFedMe, Ditto, FedALA, Fed-ROD, FedRecon, FedPer: rounds by hand, limits, fixed points.

Everywhere, client a has one example (1, 3): slope of (w - 3)^2 is 2 (w - 3). Client b has three examples
(2, 0): slope of (2 w)^2 is 8 w. All start from w = 1 with lr 0.1.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task
from motet.core import Turn, average
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.ditto import Ditto
from motet.methods.fedala import FedALA
from motet.methods.fedavg import FedAvg
from motet.methods.feddyn import FedDyn
from motet.methods.fedper import FedPer
from motet.methods.fedrecon import FedRecon
from motet.methods.fedrod import FedROD
from motet.methods.local import Local
from motet.methods.pfedme import PFedMe
from motet.methods.scaffold import Scaffold
from motet.parts.several_models import other_start
from motet.vec import Vec
from rounds import TWO, after, apart, one_number

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def two_numbers() -> Task:
    """head * body * x, both 1."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for p in net.parameters():
        nn.init.constant_(p, 1.0)
    return Task(net, "numbers", 1)


def number(tree: Any) -> float:
    (value,) = (v for v in tree.values())
    return float(value)


class Even(FedAvg):
    """FedAvg whose clients weigh the same."""

    def round(self, w: Any, turn: Turn) -> Any:
        return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))


# ---- SCAFFOLD ----


@engines
def test_two_rounds_of_scaffold_by_hand(engine: Any) -> None:
    # Round 1: y = 1.4 and 0.2, x = 1 + (0.4 - 0.8)/2 = 0.8; c_a = (1-1.4)/0.1 = -4, c_b = 8, c = 2.
    # Round 2: a: -4.4 + 4 + 2 = 1.6 -> 0.64. b: 6.4 - 8 + 2 = 0.4 -> 0.76. x = 0.7.
    method = Scaffold(one_number(), lr=0.1, batch=4)
    here = engine(TWO)
    s = after(method, here, 1)
    assert number(s["x"]) == pytest.approx(0.8) and number(s["c"]) == pytest.approx(2.0)
    assert number(here.keeps.get("a")) == pytest.approx(-4) and number(here.keeps.get("b")) == pytest.approx(
        8
    )
    assert number(after(method, engine(TWO), 2)["x"]) == pytest.approx(0.7)


def test_scaffolds_first_round_is_evenly_weighted_fedavg(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    a = after(Scaffold(task, epochs=2), Loop(clients_data), 1)["x"]
    assert apart(a, after(Even(task, epochs=2), Loop(clients_data), 1)) < 1e-6


@engines
def test_scaffolds_control_variates_are_means_of_gradients_that_clip_cut(engine: Any) -> None:
    # Slopes -4 and 8 are cut to -1 and 1: y = 1.1 and 0.9, x = 1, c_a = -1, c_b = 1, c = 0. The next round is the
    # same again: the cut slope without c_i is 0, and y stays at x, so that c_i + 0 is the cut slope.
    method, here = Scaffold(one_number(), lr=0.1, batch=4, clip=1.0), engine(TWO)
    s = after(method, here, 2)
    assert number(s["x"]) == pytest.approx(1.0) and number(s["c"]) == pytest.approx(0.0)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([-1.0, 1.0])


def test_scaffold_with_one_client_is_fedavg(task: Task, clients_data: dict[str, ClientData]) -> None:
    one = {"c05": clients_data["c05"]}
    assert apart(after(Scaffold(task), Loop(one), 4)["x"], after(FedAvg(task), Loop(one), 4)) < 1e-6


def test_scaffold_finds_the_joint_optimum_where_fedavg_drifts() -> None:
    # The even mean of (w-3)^2 and (2w)^2 is least where 2 (w-3) + 8 w = 0: 0.6.
    how: dict[str, Any] = {"lr": 0.05, "epochs": 10, "batch": 4}
    assert number(after(Scaffold(one_number(), **how), Loop(TWO), 60)["x"]) == pytest.approx(0.6, abs=1e-3)
    assert abs(number(after(Even(one_number(), **how), Loop(TWO), 60)) - 0.6) > 0.3


# ---- FedDyn ----


@engines
def test_two_rounds_of_feddyn_by_hand(engine: Any) -> None:
    # alpha 0.5. Round 1: 1.4 and 0.2, mean 0.8; g = -0.2 and 0.4; h = -0.5 (0.8 - 1) = 0.1; theta = 0.8 - 0.2 = 0.6.
    # Round 2: a: -4.8 + 0.2 -> 1.06; b: 4.8 - 0.4 -> 0.16; mean 0.61; h = 0.095; theta = 0.61 - 0.19 = 0.42.
    method = FedDyn(one_number(), lr=0.1, batch=4, alpha=0.5)
    assert number(after(method, engine(TWO), 1)["theta"]) == pytest.approx(0.6)
    assert number(after(method, engine(TWO), 2)["theta"]) == pytest.approx(0.42)


def test_feddyn_rests_at_the_joint_optimum_with_every_clients_own_gradient() -> None:
    here = Loop(TWO)
    s = after(FedDyn(one_number(), lr=0.05, epochs=40, batch=4, alpha=2.0), here, 120)
    assert number(s["theta"]) == pytest.approx(0.6, abs=1e-3)
    assert number(here.keeps.get("a")) == pytest.approx(2 * (0.6 - 3), abs=1e-2)
    assert number(here.keeps.get("b")) == pytest.approx(8 * 0.6, abs=1e-2)


# ---- pFedMe ----


@engines
def test_a_round_of_pfedme_by_hand(engine: Any) -> None:
    # lam 2, one inner step of 0.1, two epochs. a: theta 1.4, w = 1 + 0.2*0.4 = 1.08; then theta's slope is
    # 2(1.4-3) + 2(1.4-1.08) = -2.56 -> 1.656, w = 1.08 + 0.2*0.576 = 1.1952.
    # b: theta 0.2, w 0.84; slope 1.6 + 2(0.2-0.84) = 0.32 -> 0.168, w = 0.84 - 0.2*0.672 = 0.7056. Mean 0.9504.
    method = PFedMe(one_number(), lr=0.1, lam=2.0, inner=1, inner_lr=0.1, epochs=2, batch=4)
    here = engine(TWO)
    assert number(after(method, here, 1)) == pytest.approx(0.9504)
    assert number(here.keeps.get("a")) == pytest.approx(1.656)
    assert number(here.keeps.get("b")) == pytest.approx(0.168)


@engines
def test_decay_and_clip_are_of_pfedmes_personal_model(engine: Any) -> None:
    # As above. decay 1: a's slope -4 + 1 = -3 -> 1.3, w = 1 + 0.2*0.3 = 1.06; b's 8 + 1 = 9 -> 0.1, w = 0.82.
    # clip 2: a's -2 -> 1.2, w = 1.04; b's 2 -> 0.8, w = 0.96.
    for how, theta, w in (({"decay": 1.0}, [1.3, 0.1], 0.94), ({"clip": 2.0}, [1.2, 0.8], 1.0)):
        method = PFedMe(one_number(), lr=0.1, lam=2.0, inner=1, inner_lr=0.1, batch=4, **how)  # type: ignore[arg-type]
        here = engine(TWO)
        assert number(after(method, here, 1)) == pytest.approx(w)
        assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx(theta)


def test_pfedme_goes_beta_of_the_way() -> None:
    how: dict[str, Any] = {"lr": 0.1, "lam": 2.0, "inner": 1, "inner_lr": 0.1, "epochs": 2, "batch": 4}
    half = after(PFedMe(one_number(), beta=0.5, **how), Loop(TWO), 1)
    assert number(half) == pytest.approx(1 + 0.5 * (0.9504 - 1))


def test_pfedme_rests_where_the_envelopes_slopes_cancel() -> None:
    # theta_a = (6 + 2 w)/4 and theta_b = 2 w/10 for lam 2; w = their mean: 1.3 w = 1.5.
    method = PFedMe(one_number(), lr=0.05, lam=2.0, inner=60, inner_lr=0.05, batch=4)
    here = Loop(TWO)
    assert number(after(method, here, 150)) == pytest.approx(1.5 / 1.3, abs=2e-3)
    assert number(here.keeps.get("a")) == pytest.approx((6 + 2 * 1.5 / 1.3) / 4, abs=2e-2)


# ---- Ditto ----


@engines
def test_a_round_of_ditto_by_hand(engine: Any) -> None:
    # lam 2, two epochs. v_a: 1.4, then 2(1.4-3) + 2(1.4-1) = -2.4 -> 1.64. v_b: 0.2, then 1.6 - 1.6 = 0 -> 0.2.
    here = engine(TWO)
    after(Ditto(one_number(), lr=0.1, batch=4, epochs=2, lam=2.0), here, 1)
    assert number(here.keeps.get("a")) == pytest.approx(1.64)
    assert number(here.keeps.get("b")) == pytest.approx(0.2)


def test_dittos_global_model_is_fedavgs(task: Task, clients_data: dict[str, ClientData]) -> None:
    assert apart(after(Ditto(task), Loop(clients_data), 3), after(FedAvg(task), Loop(clients_data), 3)) == 0


def test_ditto_with_lam_zero_is_local_training(task: Task, clients_data: dict[str, ClientData]) -> None:
    near, alone = Loop(clients_data), Loop(clients_data)
    after(Ditto(task, lam=0.0), near, 3)
    after(Local(task), alone, 3)
    assert max(apart(near.keeps.get(c), alone.keeps.get(c)) for c in clients_data) < 1e-7


# ---- FedALA ----


@engines
def test_two_rounds_of_fedala_by_hand(engine: Any) -> None:
    # Round 1 is FedAvg's: own 1.4 and 0.2, w = 0.5. Round 2, A from 1 by one step of 0.1:
    # a: slope 2(0.5-3)(0.5-1.4) = 4.5, A = 0.55, start 1.4 - 0.9*0.55 = 0.905 -> 0.905 + 0.419 = 1.324.
    # b: slope 8*0.5*(0.5-0.2) = 1.2, A = 0.88, start 0.2 + 0.3*0.88 = 0.464 -> 0.464 - 0.3712 = 0.0928.
    method = FedALA(one_number(), lr=0.1, batch=4, mix_lr=0.1, mix_share=1.0, mix_first=1, tensors=1)
    here = engine(TWO)
    assert number(after(method, here, 2)) == pytest.approx((1.324 + 3 * 0.0928) / 4)
    assert number(here.keeps.get("a")["a"]) == pytest.approx(0.55)
    assert number(here.keeps.get("b")["own"]) == pytest.approx(0.0928)


def test_fedalas_weights_stay_between_0_and_1() -> None:
    here = Loop(TWO)
    after(FedALA(one_number(), lr=0.1, batch=4, mix_lr=100.0, tensors=1), here, 3)
    assert {number(here.keeps.get(c)["a"]) for c in TWO} <= {0.0, 1.0}


def test_clip_cuts_no_gradient_of_fedalas_weights(task: Task, clients_data: dict[str, ClientData]) -> None:
    here, own = Loop(clients_data), other_start(task.w0, 1)
    found = []
    for clip in (0.0, 1e-6):
        method = FedALA(task, clip=clip)
        after(method, here, 0)
        keep = method.join(here.data("c07")) | {"own": own, "rounds": torch.tensor(1)}
        found.append(method.train(task.w0, keep, here.data("c07"))[1]["a"])
    assert apart(*found) == 0 and float(found[0]["2.weight"].min()) < 1


def test_fedala_with_its_weights_frozen_at_one_is_fedavg(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    a = after(FedALA(task, mix_lr=1e-12), Loop(clients_data), 4)
    assert apart(a, after(FedAvg(task), Loop(clients_data), 4)) < 1e-6


# ---- Fed-ROD ----


@engines
def test_a_round_of_fedrod_by_hand(engine: Any) -> None:
    # One layer: z = x, and both heads start at 1. g as FedAvg. h_a: (1 + 1 - 3)*2 = -2 -> 1.2;
    # h_b: 2*(2 + 2)*2 = 16 -> -0.6.
    here = engine(TWO)
    method = FedROD(one_number(), lr=0.1, batch=4)
    assert number(after(method, here, 1)) == pytest.approx(0.5)
    assert number(here.keeps.get("a")) == pytest.approx(1.2)
    assert number(here.keeps.get("b")) == pytest.approx(-0.6)
    own = method.personal(Vec(weight=torch.tensor([[0.5]])), here.keeps.get("a"), None)
    assert float(own(torch.tensor([[1.0]]))) == pytest.approx(1.7)


def test_fedrods_generic_head_learns_no_class_sizes_and_its_personal_head_does() -> None:
    net = nn.Linear(1, 3)
    for p in net.parameters():
        nn.init.zeros_(p)
    x, y = torch.zeros(4, 1), torch.tensor([0, 0, 0, 1])  # nothing to see, classes 3 : 1, the third is absent
    here = Loop({"a": ClientData(Batch.of(x, y), Batch.of(x, y), Batch.of(x, y))})
    w = after(FedROD(Task(net, "classes", 3), lr=0.1, batch=4), here, 1)
    # softmax(log n) is the share of each class, so the balanced loss has no slope at 0
    assert w["bias"].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    # uniform guess minus shares: 1/3 - (3/4, 1/4, 0), times -0.1
    assert here.keeps.get("a")["bias"].tolist() == pytest.approx([0.1 * 5 / 12, -0.1 / 12, -0.1 / 3])


# ---- FedPer ----


@engines
def test_a_round_of_fedper_by_hand(engine: Any) -> None:
    # a predicts 1, so both layers move by 0.4; b predicts 2, so both move by -0.8. Body (1.4 + 3*0.2)/4.
    here = engine(TWO)
    body = after(FedPer(two_numbers(), lr=0.1, batch=4), here, 1)
    assert list(body) == ["0.weight"] and number(body) == pytest.approx(0.5)
    assert number(here.keeps.get("a")) == pytest.approx(1.4)
    assert number(here.keeps.get("b")) == pytest.approx(0.2)


@engines
def test_a_round_of_fedper_with_alternation_by_hand(engine: Any) -> None:
    # a: head 1.4, then body 1 - 0.1*2(1.4-3)*1.4 = 1.448. b: head 0.2, then body 1 - 0.1*2*0.4*0.2*2 = 0.968.
    body = after(FedPer(two_numbers(), lr=0.1, batch=4, alternate=True, head_epochs=1), engine(TWO), 1)
    assert number(body) == pytest.approx((1.448 + 3 * 0.968) / 4)


def test_fedper_with_an_empty_head_is_fedavg(task: Task, clients_data: dict[str, ClientData]) -> None:
    headless = copy.copy(task)
    headless.head = ()
    method = FedPer(headless)
    w = after(method, Loop(clients_data), 3)
    assert apart(w, after(FedAvg(task), Loop(clients_data), 3)) == 0
    assert method.global_model(w) is w


def test_fedper_of_one_layer_is_local() -> None:
    shared, alone = Loop(TWO), Loop(TWO)
    assert after(FedPer(one_number(), lr=0.1), shared, 3) == {}
    after(Local(one_number(), lr=0.1), alone, 3)
    assert number(shared.keeps.get("b")) == number(alone.keeps.get("b"))
    (said,) = FedPer(one_number(), lr=0.1).remarks()
    assert said.startswith(
        "fedper keeps the last layer at the clients, and this network has one layer: nothing is"
    )


def test_fedper_with_a_body_needs_no_remark(task: Task) -> None:
    assert FedPer(task).remarks() == [] and FedAvg(one_number()).remarks() == []


# ---- FedRecon ----


@engines
def test_a_round_of_fedrecon_by_hand(engine: Any) -> None:
    # a has one example: it rebuilds the head, and nothing is left to train the body. b: head 0.2 on two
    # examples, then the body on the third: 1 - 0.1*2*0.4*0.2*2 = 0.968.
    method = FedRecon(two_numbers(), lr=0.1, batch=4, recon_lr=0.1, recon_epochs=1)
    here = engine(TWO)
    body = after(method, here, 1)
    assert number(body) == pytest.approx((1.0 + 3 * 0.968) / 4)
    assert here.keeps.get("a") in (None, ())


def test_fedrecon_of_one_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="all head.\nhint: use a network with more than one layer"):
        after(FedRecon(one_number()), Loop(TWO), 1)
