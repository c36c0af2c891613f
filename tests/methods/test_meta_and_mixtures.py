"""Per-FedAvg, Reptile, APFL and MR-MTL: rounds by hand, and limits in which they are other methods.

One number, 1 at the start. Client a has one example (1, 3): slope of (w - 3)^2 is 2 (w - 3). Client b has three
examples (2, 0): slope of (2 w)^2 is 8 w. lr is 0.1.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, Task
from motet.client.losses import Criterion
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.apfl import APFL
from motet.methods.fedavg import FedAvg
from motet.methods.finetune import FineTune
from motet.methods.local import Local
from motet.methods.mrmtl import MRMTL
from motet.methods.perfedavg import PerFedAvg, halves
from motet.methods.reptile import Reptile
from rounds import TWO, after, apart, one_number

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def number(tree: Any) -> float:
    (value,) = tree.values()
    return float(value)


# ---- Per-FedAvg ----


@engines
@pytest.mark.parametrize(("delta", "expected"), [(0.0, 0.73), (0.01, 0.865)])
def test_a_round_of_perfedavg_by_hand(engine: Any, delta: float, expected: float) -> None:
    # alpha 0.05. a: 1 -> 1.2, slope there -3.6; b: 1 -> 0.6, slope there 4.8.
    # FO: 1.36 and 0.52, by examples (1.36 + 1.56) / 4 = 0.73. HF: slopes times 1 - 0.05 * 2 and 1 - 0.05 * 8:
    # -3.24 and 2.88: 1.324 and 0.712: (1.324 + 2.136) / 4 = 0.865.
    method = PerFedAvg(one_number(), lr=0.1, batch=4, inner_lr=0.05, delta=delta)
    assert number(after(method, engine(TWO), 1)) == pytest.approx(expected, abs=1e-4)


def test_perfedavg_that_adapts_by_nothing_trains_on_the_second_half_of_each_batch() -> None:
    method = PerFedAvg(one_number(), lr=0.1, batch=4, inner_lr=1e-9)
    assert number(after(method, Loop(TWO), 1)) == pytest.approx(
        0.5, abs=1e-6
    )  # FedAvg: rows of a client are alike


def test_halves_share_no_row_unless_there_is_one_row() -> None:
    x = torch.zeros(4, 1)
    first, second = halves(Batch(x, x[:, 0], torch.tensor([1.0, 1.0, 1.0, 0.0])))
    assert first.live.tolist() == [1, 0, 1, 0] and second.live.tolist() == [0, 1, 0, 0]
    first, second = halves(Batch(x, x[:, 0], torch.tensor([1.0, 0.0, 0.0, 0.0])))
    assert first.live.tolist() == second.live.tolist() == [1, 0, 0, 0]


def frozen_sum() -> nn.Linear:
    layer = nn.Linear(4, 1, bias=False).requires_grad_(False)
    nn.init.ones_(layer.weight)
    return layer


def outputs_alone(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return z


@engines
def test_dropout_is_no_part_of_perfedavgs_difference_of_gradients(engine: Any) -> None:
    # The loss is the output, which is linear in w: there is no curvature, and HF is FO. Gradients under two draws
    # differ by about their own size, of which a division by 2 delta makes 500 times as much.
    net = nn.Sequential(nn.Linear(1, 4, bias=False), nn.Dropout(0.5), frozen_sum())
    task = Task(net, "numbers", 1, criterion=Criterion("squared", own=outputs_alone))
    found = [after(PerFedAvg(task, inner_lr=0.05, delta=d, batch=1), engine(TWO), 2) for d in (0.0, 1e-3)]
    assert apart(*found) < 1e-3 < apart(task.w0, found[0])


@engines
def test_frozen_layers_can_be_used_after_steps_that_take_derivatives(engine: Any) -> None:
    # Each thread copies the network when it first needs it, here inside of PerFedAvg's derivative. Frozen weights stay
    # in the copy, and must not be part of a derivative that has ended.
    task = Task(nn.Sequential(nn.Linear(1, 4), frozen_sum()), "numbers", 1)
    found = [after(PerFedAvg(task, delta=d), engine(TWO), 1) for d in (1e-3, 0.0, 1e-3)]
    assert apart(found[0], found[2]) == 0


def test_perfedavg_adapts_by_epochs_or_by_steps_and_not_in_what_it_sends() -> None:
    # Batches of one. b at 1: an epoch of three steps with 0.05 goes 0.6, 0.36, 0.216; one step goes to 0.6.
    here, w = Loop(TWO), one_number().w0
    after(FedAvg(one_number()), here, 1)
    for tune_steps, expected in ((0, 0.216), (1, 0.6)):
        method = PerFedAvg(one_number(), batch=1, inner_lr=0.05, tune_steps=tune_steps)
        assert number(method.personal(w, (), here.data("b")).args[0]) == pytest.approx(expected)
        assert number(method.trained_model(w, w, (), here.data("b")).args[0]) == 1


# ---- Reptile ----


def test_reptile_goes_a_part_of_the_way_to_the_simple_mean() -> None:
    # 1.4 and 0.2: the simple mean is 0.8; half of the way from 1 is 0.9.
    assert number(
        after(Reptile(one_number(), lr=0.1, batch=4, server_lr=0.5), Loop(TWO), 1)
    ) == pytest.approx(0.9)


def test_reptile_with_clients_of_one_size_and_a_whole_step_is_finetune(task: Any, clients_data: Any) -> None:
    same = {c: clients_data["c05"] for c in ("x", "y")}
    found = [after(m(task), Loop(same), 3) for m in (Reptile, FineTune)]
    assert apart(*found) < 1e-6


# ---- APFL ----


@engines
def test_two_steps_of_apfl_by_hand(engine: Any) -> None:
    # alpha 0.5, fixed; two epochs. a: w 1 -> 1.4; v's slope 0.5 * 2 (1 - 3) = -2 -> 1.2. Then the mixture is
    # (1.2 + 1.4) / 2 = 1.3: v's slope 0.5 * 2 (1.3 - 3) = -1.7 -> 1.37; w's 2 (1.4 - 3) -> 1.72.
    # b: w 1 -> 0.2, v's slope 0.5 * 8 -> 0.6; mixture 0.4: 0.5 * 3.2 -> 0.44; w's 1.6 -> 0.04.
    method, here = APFL(one_number(), lr=0.1, batch=4, epochs=2, alpha=0.5, adaptive=False), engine(TWO)
    w = after(method, here, 1)
    assert number(w) == pytest.approx((1.72 + 3 * 0.04) / 4)
    assert [number(here.keeps.get(c)["v"]) for c in "ab"] == pytest.approx([1.37, 0.44])
    (own,) = method.personal(w, here.keeps.get("a"), here.data("a")).args
    assert number(own) == pytest.approx((1.37 + 0.46) / 2)


@engines
def test_apfls_alpha_takes_one_step_a_round_and_stays_a_share(engine: Any) -> None:
    # Round 1: v = w, so alpha stays 0.5. Then w = 0.5, v = 1.2 and 0.6 (by hand, one step each).
    # Round 2, a: mixture 0.85, slope 2 (0.85 - 3) = -4.3, times v - w = 0.7: alpha = 0.5 + 0.301.
    # b: mixture 0.55, slope 4.4, times 0.1: alpha = 0.5 - 0.044.
    here = engine(TWO)
    after(APFL(one_number(), lr=0.1, batch=4), here, 2)
    assert [float(here.keeps.get(c)["alpha"]) for c in "ab"] == pytest.approx([0.801, 0.456], abs=1e-5)
    after(APFL(one_number(), lr=0.1, batch=4), here, 12)
    assert all(0 <= float(here.keeps.get(c)["alpha"]) <= 1 for c in "ab")


@engines
def test_apfls_alpha_may_have_a_rate_of_its_own(engine: Any) -> None:
    # As above; slopes of alpha are -3.01 and 0.44.
    here = engine(TWO)
    after(APFL(one_number(), lr=0.1, batch=4, alpha_lr=0.05), here, 2)
    assert [float(here.keeps.get(c)["alpha"]) for c in "ab"] == pytest.approx([0.6505, 0.478], abs=1e-5)


def test_apfl_with_alpha_1_is_local_training_and_with_alpha_0_fedavg(task: Any, clients_data: Any) -> None:
    here, alone = Loop(clients_data), Loop(clients_data)
    w = after(APFL(task, alpha=1.0, adaptive=False), here, 2)
    after(Local(task), alone, 2)
    assert apart(here.keeps.get("c07")["v"], alone.keeps.get("c07")) < 1e-6
    assert apart(w, after(FedAvg(task), Loop(clients_data), 2)) < 1e-6
    method = APFL(task, alpha=0.0, adaptive=False)
    (own,) = method.personal(w, method.join(here.data("c07")), here.data("c07")).args
    assert apart(own, w) == 0


# ---- MR-MTL ----


@engines
def test_two_rounds_of_mrmtl_by_hand(engine: Any) -> None:
    # lam 2. Round 1: 1.4 and 0.2, their simple mean 0.8. Round 2, a: 2 (1.4 - 3) + 2 (1.4 - 0.8) = -2 -> 1.6; b: 1.6 +
    # 2 (0.2 - 0.8) = 0.4 -> 0.16. Mean 0.88.
    here = engine(TWO)
    assert number(after(MRMTL(one_number(), lr=0.1, batch=4, lam=2.0), here, 2)) == pytest.approx(0.88)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([1.6, 0.16])


def test_mrmtl_with_lam_zero_is_local_training(task: Any, clients_data: Any) -> None:
    here, alone = Loop(clients_data), Loop(clients_data)
    after(MRMTL(task, lam=0.0), here, 3)
    after(Local(task), alone, 3)
    assert apart(here.keeps.get("c04"), alone.keeps.get("c04")) == 0
