"""Engines around engines forward all that a run calls: no wrapper may silently lose a score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import motet
from motet.client import ClientData, Task
from motet.core import Engine, Turn
from motet.engines.driver import play, training
from motet.engines.flare import Flare
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.faulty import Faulty
from motet.engines.wrappers.hostile import Hostile
from motet.methods.fedper import FedPer
from motet.vec import leaves

MEMBERS = sorted(k for k in vars(Engine) if not k.startswith("_"))
WRAPPERS = {
    "counted": Counted,
    "faulty": lambda e: Faulty(e, lambda client, number: False),
    "hostile": lambda e: Hostile(e, [], "flip"),
}


def test_scores_after_training_are_kept_under_an_attack(tmp_path: Path) -> None:
    words: dict[str, Any] = {"data": {"name": "wine", "clients": 3, "unseen": 0.0}, "method": "fedavg"}
    guard = {"attack": "flip", "attackers": 0.4}
    run = motet.run(out=tmp_path, rounds=2, after_training=True, guard=guard, **words)
    assert "after_training" in set(run.scores["side"])


@pytest.mark.parametrize("engine", [Loop({}), Vmap({}), Threads({}), Flare([], lambda letters: ({}, {}))])
def test_every_engine_has_all_that_a_run_calls(engine: Any) -> None:
    assert [m for m in MEMBERS if not hasattr(engine, m)] == []


@pytest.mark.parametrize("wrapper", [Counted, Faulty, Hostile])
def test_every_wrapper_writes_out_what_it_passes_on(wrapper: Any) -> None:
    assert [m for m in MEMBERS if m not in dir(wrapper)] == []
    assert not hasattr(wrapper, "__getattr__")


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_engine_answers_as_the_engine_does(
    wrapper: str, task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, loop, other = FedPer(task), Loop(clients_data), Loop(clients_data)
    wrapped: Engine = WRAPPERS[wrapper](other)
    turn = Turn(0, loop.clients, loop.clients, 3)
    before = method.start(turn)
    states = [play(e, method, before, turn) for e in (loop, wrapped)]
    rows = clients_data[loop.clients[0]].test.take()
    found = [
        answers(e, method, state, before, turn, rows)
        for e, state in zip((loop, wrapped), states, strict=True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(leaves(found[0]), leaves(found[1]), strict=True))
    assert wrapped.clients == loop.clients and wrapped.refused is other.refused
    assert wrapped.keeps is other.keeps


def answers(engine: Engine, method: Any, state: Any, before: Any, turn: Turn, rows: Any) -> Any:
    """All that a run asks of an engine besides asks."""
    first = engine.clients[0]
    return [
        engine.evaluate(method, state, turn, "val")[1],
        engine.evaluate_trained(method, training(method, before, turn), turn)[1],
        [tree for _, tree in engine.personal_models(method, state, turn)],
        torch.tensor(list(engine.model_function(method, state, turn, first).encode())),
        engine.server_scores(method.task, method.task.w0, rows),
    ]
