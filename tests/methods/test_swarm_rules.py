"""What losses reveal, and the rules that use it: least squares from a handful of messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from motet.client import Task
from motet.core import MethodUnfit
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.vmap import Vmap
from motet.engines.wrappers.faulty import Faulty
from motet.methods.swarm import Swarm
from motet.parts.surrogates import coefficients, fitted
from rounds import after, turn
from swarm_data import divided, line, linear, same, three_classes


def wide(x: Tensor) -> Tensor:
    return torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64)], 1)


def least_squares(x: Tensor, y: Tensor) -> float:
    best = torch.linalg.lstsq(wide(x), y.double()[:, None]).solution[:, 0]
    return float((wide(x) @ best - y).square().mean())


def listen(engine: Any, method: Swarm, rounds: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All points that the server sent in ordinary rounds, and the mean losses that it learned."""
    heard: list[tuple[Tensor, Tensor]] = []
    inner = engine.ask

    def ask(said: Any) -> Any:
        answer = inner(said)
        heard.append((said.send["theta"].flatten(0, 1), answer[0].flatten()))
        return answer

    engine.ask = ask
    after(method, engine, rounds)
    points, losses = (torch.cat(part).numpy() for part in zip(*heard, strict=True))
    at = np.unique(points, axis=0, return_index=True)[1]
    return points[at], losses[at]


@pytest.mark.parametrize("rule", ["fsi", "cma"])
def test_a_server_that_only_listens_has_the_gram_matrix_after_a_few_messages(rule: Any) -> None:
    """No message is out of the ordinary: the swarm that asks is motet's own."""
    x, y = line(features=8)
    here = Loop(divided(x.double(), y.double(), torch.arange(60) % 4))
    points, losses = listen(here, Swarm(linear(8, 1), rule=rule, stretch=4, first="unit"), 1)
    assert coefficients(9) == 55 <= len(losses) <= 100
    found = fitted(points, losses)
    gram = (wide(x).T @ wide(x) / len(x)).numpy()
    assert found.curvature / 2 == pytest.approx(gram, abs=1e-8)  # X'X / n
    best = found.centre + found.steps(np.empty(0))[0]
    assert best == pytest.approx(
        torch.linalg.lstsq(wide(x), y.double()[:, None]).solution[:, 0].numpy(), abs=1e-6
    )


def test_single_replies_give_the_gram_matrix_of_one_client() -> None:
    """Between organisations the server sees every reply: this is what it can make of one site's."""
    x, y = line()
    mine = torch.arange(60) % 4 == 1
    alone = Loop(divided(x.double(), y.double(), torch.where(mine, 1, 0)))
    alone.clients_data = {"c1": alone.clients_data["c1"]}
    alone.clients = ["c1"]
    points, losses = listen(alone, Swarm(linear(4, 1), stretch=3, first="unit"), 1)
    gram = (wide(x[mine]).T @ wide(x[mine]) / int(mine.sum())).numpy()
    assert fitted(points, losses).curvature / 2 == pytest.approx(gram, abs=1e-8)


@pytest.mark.parametrize("rule, messages", [("surrogate", 6), ("cma", 150), ("nes", 400)])
def test_rules_reach_least_squares(rule: Any, messages: int) -> None:
    x, y = line()
    here = Loop(divided(x.double(), y.double(), torch.arange(60) % 4))
    s = after(Swarm(linear(4, 1), rule=rule, stretch=messages), here, 1)
    assert float(s["loss"]) == pytest.approx(least_squares(x, y), rel=1e-6)


@pytest.mark.parametrize("rule", ["cma", "nes", "surrogate"])
def test_a_rule_is_the_same_on_other_engines_and_however_rounds_end(rule: Any) -> None:
    x, y = line()
    clients = divided(x.double(), y.double(), torch.arange(60) % 4)
    a, b = (after(Swarm(linear(4, 1), rule=rule, stretch=n), Loop(clients), 12 // n) for n in (12, 2))
    assert same(a, b) == 0
    c = after(Swarm(linear(4, 1), rule=rule, stretch=4), Vmap(clients), 1)
    d = after(Swarm(linear(4, 1), rule=rule, stretch=4), Loop(clients), 1)
    assert same(c["theta"], d["theta"]) < 1e-6


@pytest.mark.parametrize("rule", ["cma", "nes"])
@pytest.mark.parametrize("loss", ["task", "one_vs_all"])
def test_classes_are_learned_by_either_rule(rule: Any, loss: str) -> None:
    x, y = three_classes()
    task = linear(4, 3, "classes")
    method = Swarm(task, rule=rule, loss=loss, stretch=150)
    s = after(method, Loop(divided(x, y, y)), 1)
    right = task.predict(method.global_model(s), x).argmax(1) == y
    assert float(right.float().mean()) > 0.9


def test_a_small_network_is_searched_too() -> None:
    x, y = three_classes()
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)), "classes", 3)
    here = Loop(divided(x, y, torch.arange(60) % 3))
    for rule in ("surrogate", "cma", "nes"):
        method = Swarm(task, rule=rule, stretch=1)  # type: ignore[arg-type]
        first = float(start(here, method, turn(here, -1))["loss"])
        assert float(after(Swarm(task, rule=rule, stretch=60), here, 1)["loss"]) < 0.7 * first  # type: ignore[arg-type]


def test_the_surrogate_begins_anew_when_other_clients_answer() -> None:
    x, y = line()
    clients = divided(x.double(), y.double(), (torch.arange(60) >= 45).long())
    here = Faulty(Loop(clients), lambda client, number: client == "c1" and number >= 6)
    method = Swarm(linear(4, 1), rule="surrogate", stretch=1)
    s = start(here, method, turn(here, -1))
    for t in range(14):
        s = play(here, method, s, turn(here, t))
        if t == 5:
            assert float(s["loss"]) == pytest.approx(least_squares(x, y), rel=1e-6)
    assert float(s["loss"]) == pytest.approx(least_squares(x[:45], y[:45]), rel=1e-6)


@pytest.mark.parametrize(
    "features, how, says",
    [
        (
            40,
            {"rule": "surrogate"},
            r"903 coefficients for 41 weights.*at most 40.*\n?hint: method.rule=cma or nes",
        ),
        (1000, {"rule": "cma"}, r"1,001 x 1,001.*\n?hint: method.rule=nes"),
        (4, {"rule": "nes", "particles": 3}, "needs 5 candidates in a message, and has 3"),
    ],
)
def test_a_rule_that_cannot_search_so_many_weights_says_what_can(features: int, how: Any, says: str) -> None:
    with pytest.raises(MethodUnfit, match=says):
        Swarm(linear(features, 1), **how).check()
