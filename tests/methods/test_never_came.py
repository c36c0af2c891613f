"""Clients that never took part: where there is a shared model, they use it and not the initial weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import motet
from motet.client import ClientData, Task
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.methods.fedcp import FedCP
from motet.methods.fedrod import FedROD
from motet.runs.recipe import method_class
from motet.vec import Vec, leaves
from rounds import apart, turn

AWAY = "c11"
WITH_A_MEAN = ("ditto", "apfl", "mrmtl", "pfedme", "fedala", "fedamp", "fedfomo", "fedsoft", "l2gd")


def without_one(method: Any, here: Any) -> Any:
    """The server's state after two rounds in which one client took no part."""
    state = start(here, method, turn(here, -1))
    there = [c for c in here.clients if c != AWAY]
    for number in range(2):
        state = play(here, method, state, Turn(number, there, here.clients, number + 1))
    return state


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_a_client_that_never_came_uses_the_generic_head_of_fedrod_alone(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = FedROD(task), engine(clients_data)
    state = without_one(method, here)
    w, h = dict(here.personal_models(method, state, turn(here, 1)))[AWAY]
    x = clients_data[AWAY].test.x
    torch.testing.assert_close(method.both_heads(Vec(w), Vec(h), x), task.predict(state, x))


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_a_client_that_never_came_uses_the_global_head_of_fedcp_twice(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = FedCP(task), engine(clients_data)
    state = without_one(method, here)
    used = dict(here.personal_models(method, state, turn(here, 1)))
    (w, _, g, _), (other, *_) = used[AWAY], used["c05"]
    assert apart(Vec(w).pick(task.head), Vec(g)) == 0 < apart(Vec(other).pick(task.head), Vec(g))


@pytest.mark.parametrize("engine", [Loop, Vmap])
@pytest.mark.parametrize("name", WITH_A_MEAN)
def test_a_client_that_never_came_uses_the_shared_model(
    name: str, engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, here = method_class(name)(task), engine(clients_data)
    state, there = without_one(method, here), [c for c in here.clients if c != AWAY]
    used = dict(here.personal_models(method, state, turn(here, 1)))
    model = Vec(used[AWAY][0])
    assert apart(model, task.w0) > 0, "not the initial weights"
    if name != "fedsoft":
        view = method.download(state, AWAY)
        shared = view["mean"] if name == "l2gd" else view
        assert all(
            torch.allclose(a, b, atol=1e-6) for a, b in zip(leaves(model), leaves(shared), strict=True)
        )
    came = there[-1]
    assert apart(Vec(used[came][0]), model) > 0, "who came has a model of its own"


@pytest.mark.parametrize("name", ["fenda", "perfcl"])
def test_the_models_of_a_client_that_never_came_are_saved(name: str, tmp_path: Path) -> None:
    # Its head and that of its own body are the very same tensor of biases, which a file cannot hold twice.
    data, half = {"name": "wine", "clients": 4}, {"cohort": 0.5, "rounds": 1}
    how: Any = {"net": {"name": "mlp", "hidden": [4]}, "engine": "loop", "train": half}
    run = motet.run(method=name, data=data, out=tmp_path / "run", **how)
    rows = torch.zeros(2, 13).numpy()
    assert all(len(run.predict(client, rows)) == 2 for client in run.test["client"].unique())
