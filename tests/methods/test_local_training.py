"""Optimisers and steps in methods: who takes them, who refuses them with a reason, and how many steps there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from motet.client import Data
from motet.core import MethodUnfit
from motet.engines.loop import Loop
from motet.methods.fedavg import FedAvg
from motet.methods.fedper import FedPer
from motet.methods.scaffold import Scaffold
from motet.runs.build import resolve
from motet.runs.recipe import RecipeError, method_class, method_names, read
from rounds import TWO, after, apart, one_number

REFUSE_ADAM = {"pfedme", "scaffold"}
OTHERWISE = {"stacking", "swarm"}  # no gradient descent
CHOOSE = {"dapfl", "page", "l2gd"}  # clients choose epochs and rates themselves, or a coin does


@pytest.mark.parametrize("name", [n for n in method_names() if n not in OTHERWISE])
def test_a_method_takes_adam_or_says_why_not(name: str, task: Any) -> None:
    method = method_class(name)(task, optimiser="adam")  # type: ignore[call-arg]
    if name not in REFUSE_ADAM:
        method.check()
        return
    with pytest.raises(
        MethodUnfit, match=rf"method.optimiser is adam, and {name}.*\nhint: method.optimiser=sgd"
    ):
        method.check()


@pytest.mark.parametrize("name", [n for n in method_names() if n not in OTHERWISE])
def test_a_method_takes_momentum_or_says_why_not(name: str, task: Any) -> None:
    method = method_class(name)(task, momentum=0.9)  # type: ignore[call-arg]
    if name not in REFUSE_ADAM:
        method.check()
        return
    with pytest.raises(MethodUnfit, match=rf"method.momentum is 0.9, and {name}.*\nhint: method.momentum=0"):
        method.check()


@pytest.mark.parametrize("name", [n for n in method_names() if n not in OTHERWISE])
def test_a_method_counts_steps_unless_its_clients_choose_epochs(name: str) -> None:
    words = [f"method={name}", "method.steps=5"]
    if name in CHOOSE:
        with pytest.raises(RecipeError, match=f"unknown setting method.steps of {name}"):
            read(words=words)
    else:
        assert read(words=words)["method"]["steps"] == 5


def test_epochs_beside_steps_are_refused() -> None:
    words = ["data=wine", "data.clients=4", "method.steps=5"]
    with pytest.raises(
        MethodUnfit, match=r"epochs is 3 and method.steps is 5.*\nhint: method.steps=0, or leave"
    ):
        resolve(read(words=[*words, "method.epochs=3"]))
    found = resolve(read(words=[*words, "method.epochs=auto"])).recipe
    resolve(read(more=found.settings))


def test_momentum_is_sgds_alone() -> None:
    words = ["data=wine", "data.clients=4", "method.optimiser=adamw", "method.momentum=0.5"]
    with pytest.raises(
        MethodUnfit, match=r"momentum is 0.5, and adamw has .* own, 0.9.\nhint: method.momentum=0"
    ):
        resolve(read(words=words))


def test_a_round_of_adam_at_each_client_by_hand() -> None:
    # A first step of Adam has the length of the rate: a goes from 1 up to 1.1; b, which counts three times, to 0.9.
    method = FedAvg(one_number(), lr=0.1, batch=8, optimiser="adam")
    assert after(method, Loop(TWO), 1)["weight"].item() == pytest.approx(0.95)


def test_steps_are_those_of_so_many_epochs_where_they_are_as_long(task: Any, clients_data: Any) -> None:
    """Of a client with 8 rows in batches of 4, six steps are three epochs."""
    one = {"c01": clients_data["c01"]}
    found = [
        after(FedAvg(task, batch=4, **how), Loop(one), 2)
        for how in ({"epochs": 3}, {"steps": 6, "epochs": 1})
    ]
    assert apart(*found) == 0


def test_a_number_of_epochs_that_a_method_names_itself_stays_one(task: Any, clients_data: Any) -> None:
    """FedRep's head has its own epochs, whatever `steps` is for the body."""
    engines = [Loop({"c01": clients_data["c01"]}) for _ in range(2)]
    how: Any = {"alternate": True, "head_epochs": 2, "batch": 4}
    for engine, length in zip(engines, ({"epochs": 3}, {"steps": 6}), strict=True):
        after(FedPer(task, **how, **length), engine, 1)
    heads = [engine.keeps.get("c01") for engine in engines]
    assert apart(*heads) == 0


def test_scaffold_divides_by_the_steps_that_were_taken(task: Any, clients_data: Any) -> None:
    method, n = Scaffold(task, batch=4, epochs=3), torch.tensor(9)
    assert int(method.steps_taken(n)) == 9  # three batches, three times
    assert int(replace(method, steps=7).steps_taken(n)) == 7
    found = [after(replace(method, **how), Loop(clients_data), 1) for how in ({"epochs": 1}, {"steps": 1})]
    # One step from x, with c and c_i 0: c_i is the gradient of the first batch, in whatever way the step is counted.
    small = {"c00": clients_data["c00"]}  # five rows: an epoch of eight is one step
    one = [
        after(Scaffold(task, batch=8, **how), Loop(small), 1)["c"] for how in ({"epochs": 1}, {"steps": 1})
    ]
    assert apart(*one) == 0 and apart(found[0]["c"], found[1]["c"]) > 0


def test_how_many_rows_a_reply_rests_on_counts_steps(task: Any) -> None:
    assert FedAvg(task, batch=4, steps=3).rows_trained(100) == 12
    assert FedAvg(task, batch=4, steps=50).rows_trained(100) == 100
    recon: Any = method_class("fedrecon")
    assert recon(task, batch=4, steps=3).rows_trained(100) == 12 and recon(task).rows_trained(100) == 50


def test_a_method_by_hand_needs_no_round_in_its_data(task: Any, clients_data: Any) -> None:
    train = clients_data["c03"].train
    data = Data(train.x, train.y, torch.tensor(len(train)), torch.tensor(1), clients_data["c03"].val)
    assert int(data.round) == 0 and apart(FedAvg(task).descend(task.loss, task.w0, data), task.w0) > 0
