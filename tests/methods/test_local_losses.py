"""MOON, FedNova and FedSAM: rounds by hand, and limits in which they are FedAvg.

One number, 1 at the start. Client a has one example (1, 3): slope of (w - 3)^2 is 2 (w - 3). Client b has three
examples (2, 0): slope of (2 w)^2 is 8 w. lr is 0.1.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, Task
from motet.core import MethodUnfit
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from motet.methods.fednova import FedNova
from motet.methods.fedsam import FedSAM
from motet.methods.moon import MOON
from motet.vec import Vec
from rounds import TWO, after, apart, one_number

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def test_moons_loss_by_hand() -> None:
    # Features (1, 0) of the model, (1, 0) of the global one, (0, 1) of the last one: similarities 1 and 0, tau 0.5:
    # -log(e^2 / (e^2 + 1)) = 0.126928.
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False))
    task = Task(net, "classes", 2)

    def model(first: float, second: float) -> Vec:
        return Vec(task.w0 | {"0.weight": torch.tensor([[first], [second]])})

    here, batch = model(1.0, 0.0), Batch.of(torch.ones(1, 1), torch.zeros(1, dtype=torch.int64))
    method = MOON(task, mu=2.0, temperature=0.5)
    con = method.contrasted(here, batch, (here, model(0.0, 1.0))) - task.loss(here, batch)
    assert float(con) == pytest.approx(2 * 0.126928, abs=1e-5)


def test_moon_with_mu_zero_is_fedavg_and_with_one_layer_too(task: Any, clients_data: Any) -> None:
    found = [after(m, Loop(clients_data), 2) for m in (MOON(task, mu=0.0), FedAvg(task))]
    assert apart(*found) < 1e-7
    found = [after(m(one_number(), lr=0.1), Loop(TWO), 2) for m in (MOON, FedAvg)]
    assert apart(*found) < 1e-6 and "this is fedavg" in MOON(one_number()).remarks()[0]


def test_moon_keeps_the_clients_last_model(task: Any, clients_data: Any) -> None:
    one = {"c05": clients_data["c05"]}
    here = Loop(one)
    assert apart(after(MOON(task), here, 2), here.keeps.get("c05")) < 1e-7


@engines
def test_a_round_of_fednova_by_hand(engine: Any) -> None:
    # Batches of one: a takes 1 step to 1.4, b takes 3: 1 -> 0.2 -> 0.04 -> 0.008. d = 0.4 and -0.992 / 3; by examples
    # d = (0.4 - 0.992) / 4 = -0.148, a = (1 + 9) / 4 = 2.5: 1 - 0.37 = 0.63. FedAvg goes to (1.4 + 0.024) / 4 = 0.356.
    assert float(after(FedNova(one_number(), lr=0.1, batch=1), engine(TWO), 1)["weight"]) == pytest.approx(
        0.63
    )
    assert float(after(FedAvg(one_number(), lr=0.1, batch=1), engine(TWO), 1)["weight"]) == pytest.approx(
        0.356
    )


def test_fednova_counts_what_momentum_adds() -> None:
    # rho 0.5, three steps: 1 + 1.5 + 1.75 = 4.25.
    method, here = FedNova(one_number(), batch=1, momentum=0.5), Loop(TWO)
    after(method, here, 1)
    assert float(method.length_of_a(here.data("b"))) == pytest.approx(4.25)
    with pytest.raises(MethodUnfit, match="divides by 1 - momentum"):
        FedNova(one_number(), momentum=1.0).check()


def test_fednova_with_equally_many_steps_is_fedavg(task: Any, clients_data: Any) -> None:
    how: Any = {"steps": 4, "momentum": 0.5}
    found = [after(m(task, **how), Loop(clients_data), 2) for m in (FedNova, FedAvg)]
    assert apart(*found) < 1e-5


@engines
def test_a_round_of_fedsam_by_hand(engine: Any) -> None:
    # rho 0.5: a goes along the slope at 1 - 0.5: -5 -> 1.5; b along that at 1.5: 12 -> -0.2. (1.5 - 0.6) / 4 = 0.225.
    w = after(FedSAM(one_number(), lr=0.1, batch=4, rho=0.5), engine(TWO), 1)
    assert float(w["weight"]) == pytest.approx(0.225, abs=1e-6)


def test_fedsam_with_rho_zero_is_fedavg(task: Any, clients_data: Any) -> None:
    found = [after(m, Loop(clients_data), 2) for m in (FedSAM(task, rho=0.0), FedAvg(task))]
    assert apart(*found) < 1e-6


def test_fedsam_learns_statistics_of_batchnorm(clients_data: Any) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net.statistics = "averaged"  # type: ignore[assignment]
    task = Task(net, "classes", 3)
    w = after(FedSAM(task), Loop(clients_data), 1)
    assert not torch.equal(w["1.running_mean"], task.w0["1.running_mean"])
    # Each batch counts once: those at the steepest point nearby are not those of the model.
    found = [after(m, Loop(clients_data), 2) for m in (FedSAM(task, rho=0.0), FedAvg(task))]
    assert apart(*found) < 1e-6
