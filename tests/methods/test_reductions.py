"""Rounds computed by hand, and limits in which one method becomes another."""

from __future__ import annotations

from typing import Any

import pytest

from motet.client import ClientData, Task, descend
from motet.core import Turn
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.centralised import Centralised
from motet.methods.fedavg import FedAvg
from motet.methods.fedprox import FedProx
from motet.methods.finetune import FineTune
from motet.methods.local import Local
from rounds import TWO, after, apart, one_number, turn

# Client a has one example (1, 3): slope of (w - 3)^2 at w = 1 is -4. Client b has three examples (2, 0):
# slope of (2w)^2 at 1 is 8. With lr 0.1 they go to 1.4 and 0.2; weighted by examples: (1.4 + 3 * 0.2) / 4 = 0.5.


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_a_round_of_fedavg_by_hand(engine: Any) -> None:
    w = after(FedAvg(one_number(), lr=0.1, batch=4), engine(TWO), 1)
    assert w["weight"].item() == pytest.approx(0.5)


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_a_round_of_fedprox_by_hand(engine: Any) -> None:
    # Two epochs with mu = 2. a: 1 -> 1.4, then slope 2(1.4-3) + 2(1.4-1) = -2.4 -> 1.64.
    # b: 1 -> 0.2, then slope 8*0.2 + 2(0.2-1) = 0 -> 0.2. Mean (1.64 + 0.6) / 4 = 0.56.
    w = after(FedProx(one_number(), lr=0.1, batch=4, epochs=2, mu=2.0), engine(TWO), 1)
    assert w["weight"].item() == pytest.approx(0.56)


def test_weights_can_be_given_instead_of_numbers_of_examples() -> None:
    from motet.core import average

    class Even(FedAvg):
        def round(self, w: Any, turn: Turn) -> Any:
            return (yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0)))

    assert after(Even(one_number(), lr=0.1, batch=4), Loop(TWO), 1)["weight"].item() == pytest.approx(0.8)


def test_fedprox_with_mu_zero_is_fedavg(task: Task, clients_data: dict[str, ClientData]) -> None:
    a, b = after(FedAvg(task), Loop(clients_data), 3), after(FedProx(task, mu=0.0), Loop(clients_data), 3)
    assert apart(a, b) == 0


def test_fedprox_with_a_larger_mu_stays_nearer_to_the_start(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    ways = [after(FedProx(task, mu=mu, epochs=5), Loop(clients_data), 1) for mu in (0.0, 1.0, 5.0)]
    far = [apart(w, task.w0) for w in ways]
    assert far[0] > far[1] > far[2] > 0


def test_fedavg_with_one_client_is_training_alone(task: Task, clients_data: dict[str, ClientData]) -> None:
    one = {"c05": clients_data["c05"]}
    shared, alone = Loop(one), Loop(one)
    w = after(FedAvg(task), shared, 3)
    after(Local(task), alone, 3)
    assert apart(w, alone.keeps.get("c05")) < 1e-7


def test_centralised_is_fedavg_with_one_client(task: Task, clients_data: dict[str, ClientData]) -> None:
    one = {"everyone": clients_data["c05"]}
    assert apart(after(Centralised(task), Loop(one), 2), after(FedAvg(task), Loop(one), 2)) == 0


def test_finetune_trains_on_from_fedavgs_model(task: Task, clients_data: dict[str, ClientData]) -> None:
    engine = Loop(clients_data)
    w = after(FineTune(task, tune=3), engine, 2)
    assert apart(w, after(FedAvg(task), Loop(clients_data), 2)) == 0
    data = engine.data("c03")
    (personal,) = FineTune(task, tune=3).personal(w, (), data).args
    assert apart(personal, descend(task.loss, w, data, lr=0.1, epochs=3, batch=16)) == 0


def test_nobody_hears_anything_from_local(task: Task, clients_data: dict[str, ClientData]) -> None:
    engine = Loop(clients_data)
    assert after(Local(task), engine, 2) == ()
    assert Local(task).global_model(()) is None


def test_a_client_that_never_took_part_has_the_common_start(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    engine = Loop(clients_data)
    engine.begin(Local(task), turn(engine, -1))
    assert apart(engine.keep("c00"), task.w0) == 0


def test_a_method_is_a_frozen_record_of_its_settings(task: Task) -> None:
    method = FedProx(task, lr=0.3)
    assert method.lr == 0.3 and method.mu == 0.1
    with pytest.raises(AttributeError):
        method.lr = 0.5  # type: ignore[misc]
