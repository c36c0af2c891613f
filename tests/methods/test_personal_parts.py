"""FedRep, FedBN, LG-FedAvg and FedBABU: which part of a network is whose, and whose statistics, by hand and in limits.

Networks are head * body * x, both numbers 1. Client a has one example (1, 3), client b three examples (2, 0); lr 0.1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, Task, descend
from motet.core import MethodUnfit
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.apfl import APFL
from motet.methods.fedala import FedALA
from motet.methods.fedavg import FedAvg
from motet.methods.fedbabu import FedBABU
from motet.methods.fedbn import FedBN
from motet.methods.fedcp import FedCP
from motet.methods.fedper import FedPer
from motet.methods.fedprox import FedProx
from motet.methods.fedrep import FedRep
from motet.methods.fenda import FENDA
from motet.methods.gpfl import GPFL
from motet.methods.lgfedavg import LGFedAvg
from motet.methods.local import Local
from motet.methods.superfed import SuPerFed
from motet.vec import Vec
from rounds import TWO, after, apart, one_number

engines = pytest.mark.parametrize("engine", [Loop, Vmap])


def two_numbers() -> Task:
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for p in net.parameters():
        nn.init.constant_(p, 1.0)
    return Task(net, "numbers", 1)


def with_norm(kind: str) -> Task:
    torch.manual_seed(3)
    norm = {"batch": nn.BatchNorm1d(4), "group": nn.GroupNorm(2, 4), "layer": nn.LayerNorm(4)}[kind]
    net = nn.Sequential(nn.Linear(6, 4), norm, nn.Tanh(), nn.Linear(4, 3))
    if kind == "batch":
        net.statistics = "averaged"  # type: ignore[assignment]
    return Task(net, "classes", 3)


def number(tree: Any) -> float:
    (value,) = tree.values()
    return float(value)


@engines
def test_a_round_of_fedrep_by_hand(engine: Any) -> None:
    # Heads, with the body at 1: a 1 -> 1.4, b 1 -> 0.2. Bodies: a's slope is 2 * 1.4 * (1.4 - 3) = -4.48 -> 1.448; b's
    # 2 * (0.2 * 2)^2 = 0.32 -> 0.968. Their simple mean is 1.208.
    here = engine(TWO)
    body = after(FedRep(two_numbers(), lr=0.1, batch=4, head_epochs=1), here, 1)
    assert number(body) == pytest.approx(1.208)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([1.4, 0.2])


def test_fedrep_differs_from_fedper_with_alternate_in_the_weights_of_clients_alone(
    task: Any, clients_data: Any
) -> None:
    same = {c: clients_data["c05"] for c in ("x", "y")}  # equally many rows
    found = [after(m, Loop(same), 2) for m in (FedRep(task), FedPer(task, alternate=True))]
    assert apart(*found) < 1e-7
    found = [after(m, Loop(clients_data), 2) for m in (FedRep(task), FedPer(task, alternate=True))]
    assert apart(*found) > 1e-4


@engines
def test_a_round_of_lgfedavg_by_hand(engine: Any) -> None:
    # One step of both numbers: slopes of a are -4 and -4, of b 8 and 8. Bodies 1.4 and 0.2 stay; heads 1.4 and 0.2
    # are averaged by examples: (1.4 + 3 * 0.2) / 4 = 0.5.
    here = engine(TWO)
    head = after(LGFedAvg(two_numbers(), lr=0.1, batch=4), here, 1)
    assert list(head) == ["1.weight"] and number(head) == pytest.approx(0.5)
    assert [number(here.keeps.get(c)) for c in "ab"] == pytest.approx([1.4, 0.2])


@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_fedbn_sends_all_but_the_layers_that_normalise(kind: str, clients_data: Any) -> None:
    task, here = with_norm(kind), Loop(clients_data)
    shared = after(FedBN(task), here, 2)
    assert list(shared) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    more = {"1.running_mean", "1.running_var"} if kind == "batch" else set()
    own = [here.keeps.get(c) for c in ("c04", "c05")]
    assert set(own[0]) == {"1.weight", "1.bias"} | more
    assert all(not torch.equal(own[0][k], own[1][k]) for k in own[0])


def test_fedbn_is_fedavg_without_such_layers_and_says_so(task: Any, clients_data: Any) -> None:
    found = [after(m(task), Loop(clients_data), 2) for m in (FedBN, FedAvg)]
    assert apart(*found) == 0
    assert "this is fedavg" in FedBN(task).remarks()[0] and FedBN(with_norm("group")).remarks() == []


# ---- statistics of BatchNorm ----


def test_apfl_with_alpha_1_learns_the_statistics_of_local_training(clients_data: Any) -> None:
    task, here, alone = with_norm("batch"), Loop(clients_data), Loop(clients_data)
    w = after(method := APFL(task, alpha=1.0, adaptive=False), here, 2)
    after(Local(task), alone, 2)
    expected = alone.keeps.get("c07")
    (own,) = method.personal(w, here.keeps.get("c07"), here.data("c07")).args
    assert apart(here.keeps.get("c07")["v"], expected) < 1e-5 and apart(own, expected) < 1e-5


def test_superfeds_shared_model_learns_the_statistics_of_fedprox(clients_data: Any) -> None:
    task = with_norm("batch")
    found = [
        after(m, Loop(clients_data), 2) for m in (SuPerFed(task, first=9, mu=0.3), FedProx(task, mu=0.3))
    ]
    assert apart(*found) < 1e-5 and float(found[0]["1.running_mean"].abs().min()) > 0


def test_fedala_mixes_the_last_layer_and_no_statistics(clients_data: Any) -> None:
    method = FedALA(with_norm("batch"))
    assert method.top() == ["3.weight", "3.bias"]
    after(method, Loop(clients_data), 2)


@pytest.mark.parametrize("make", [APFL, FedCP, FENDA, GPFL, SuPerFed])
def test_personal_models_are_given_the_clients_own_statistics(make: Any, clients_data: Any) -> None:
    task, here = with_norm("batch"), Loop(clients_data)
    task.statistics, task.net.statistics = "local", "local"
    state = after(method := make(task), here, 1)
    data = here.data("c07")
    own = task.at_home(method.personal(state, here.keeps.get("c07"), data), data)
    first = next(a for a in own.args if isinstance(a, dict) and "1.running_mean" in a)
    z = data.x[: int(data.n)] @ first["0.weight"].T + first["0.bias"]
    assert torch.allclose(first["1.running_mean"], z.mean(0), atol=1e-5)


def test_a_predictor_that_hides_its_weights_is_refused(clients_data: Any) -> None:
    task, here = with_norm("batch"), Loop(clients_data)
    task.statistics, task.net.statistics = "local", "local"
    after(Local(task), here, 1)

    def hidden(joined: Vec, x: Any) -> Any:
        return task.predict(joined.split("w")[0], x)

    with pytest.raises(TypeError, match="hidden predicts with weights that are none of its arguments"):
        task.at_home(partial(hidden, Vec.join(w=task.w0)), here.data("c07"))


@engines
def test_a_round_of_fedbabu_is_fedavgs_of_the_body_under_the_first_head(engine: Any) -> None:
    here = engine(TWO)
    body = after(
        FedBABU(two_numbers(), lr=0.1, batch=4), here, 1
    )  # the head is 1: as a network of one number
    assert list(body) == ["0.weight"] and number(body) == pytest.approx(0.5)
    assert list(FedBABU(two_numbers()).global_model(body)) == ["0.weight", "1.weight"]


def test_fedbabu_tunes_head_and_body_for_its_own_use(task: Any, clients_data: Any) -> None:
    here, method = Loop(clients_data), FedBABU(task, tune=2)
    body = after(method, here, 1)
    (own,) = method.personal(body, (), here.data("c03")).args
    whole = Vec(body | task.w0.pick(task.head))
    assert apart(own, descend(task.loss, whole, here.data("c03"), lr=0.1, epochs=2, batch=16)) == 0
    (trained,) = method.trained_model((), body, (), here.data("c03")).args
    assert apart(trained, whole) == 0


@pytest.mark.parametrize("method", [LGFedAvg, FedBABU])
def test_methods_that_need_a_body_refuse_a_network_of_one_layer_before_training(method: Any) -> None:
    with pytest.raises(MethodUnfit, match=r"this network is all head\.\nhint: .* net=mlp"):
        method(one_number()).check()


@pytest.mark.parametrize("make", [FedRep, partial(FedPer, alternate=True)])
def test_heads_and_bodies_in_turn_are_training_alone_with_one_layer_and_say_so(make: Any) -> None:
    here, alone, method = Loop(TWO), Loop(TWO), make(one_number(), head_epochs=1)
    after(method, here, 2)
    after(Local(one_number()), alone, 2)
    assert apart(here.keeps.get("b"), alone.keeps.get("b")) == 0
    assert "training alone" in method.remarks()[0]


def test_a_loss_of_a_part_is_the_loss_of_the_whole(task: Any, clients_data: Any) -> None:
    batch: Batch = clients_data["c06"].train
    head, body = task.w0.pick(task.head), task.w0.pick(task.body)
    assert torch.equal(task.loss_of_part(head, batch, body), task.loss(task.w0, batch))
    assert torch.equal(task.loss_of_part(body, batch, head), task.loss(task.w0, batch))
    assert float(task.loss_over(task.w0, batch)) == pytest.approx(float(task.loss(task.w0, batch)))
