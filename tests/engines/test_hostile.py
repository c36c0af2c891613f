"""Hostile clients: what they send, on every engine, and that nobody else is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from motet.client import ClientData, Task
from motet.core import Turn, average, collect, verb
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.engines.wrappers.hostile import Hostile
from motet.methods.fedavg import FedAvg
from motet.vec import leaves


class Talks(FedAvg):
    @verb
    def update(self, w: Any, keep: Any, data: Any) -> Any:
        return {"step": w["0.bias"] + 1.0, "rows": data.n}, keep

    @verb(solo=True)
    def aside(self, w: Any, keep: Any, data: Any) -> Any:
        return {"word": "text", "loss": torch.tensor(2.0)}, keep


def replies(engine: Any, how: Any, what: str, task: Task, clients_data: dict[str, ClientData]) -> Any:
    """What everybody says honestly, and with c02 and c07 hostile."""
    method, turn = Talks(task), Turn(3, sorted(clients_data), sorted(clients_data), 11)
    honest, hostile = engine(clients_data), Hostile(engine(clients_data), ["c02", "c07"], how)
    found = []
    for e in (honest, hostile):
        e.begin(method, turn)
        found.append(e.ask(collect(getattr(method, what), sorted(clients_data), task.w0)))
    return found


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_a_flipped_update_is_the_mirror_image_of_the_honest_one(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    honest, found = replies(engine, "flip", "train", task, clients_data)
    for c, w in found.items():
        expected = task.w0 * 2.0 - honest[c] if c in ("c02", "c07") else honest[c]
        assert all(torch.equal(a, b) or torch.allclose(a, b, atol=1e-6) for a, b in zip(
            leaves(w), leaves(expected), strict=True))  # fmt: skip


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_a_reply_unlike_what_was_sent_is_itself_an_update(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    honest, found = replies(engine, "flip", "update", task, clients_data)
    assert torch.allclose(found["c02"]["step"], -honest["c02"]["step"])
    assert found["c02"]["rows"] == honest["c02"]["rows"]  # whole numbers are left alone
    assert torch.equal(found["c01"]["step"], honest["c01"]["step"])


@pytest.mark.parametrize("engine", [Loop, Vmap, Threads])
def test_zeros_are_zeros_and_nan_is_refused(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    _, found = replies(engine, "zero", "train", task, clients_data)
    assert all(not v.any() for v in leaves(found["c07"])) and any(v.any() for v in leaves(found["c06"]))
    _, found = replies(engine, "nan", "train", task, clients_data)
    assert set(found) == set(clients_data) - {"c02", "c07"}


def test_a_solo_verb_stays_one_and_its_words_are_left_alone(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    _, found = replies(Vmap, "flip", "aside", task, clients_data)
    assert (found["c02"]["word"], float(found["c02"]["loss"])) == ("text", -2.0)
    assert float(found["c03"]["loss"]) == 2.0


@pytest.mark.parametrize("engine", [Loop, Vmap])
def test_free_riders_send_nothing_of_their_own(
    engine: Any, task: Task, clients_data: dict[str, ClientData]
) -> None:
    honest, idle = replies(engine, "idle", "train", task, clients_data)
    assert (idle["c02"] - task.w0).sq() == 0 and torch.equal(idle["c01"]["0.bias"], honest["c01"]["0.bias"])
    _, noise = replies(engine, "noise", "train", task, clients_data)
    true, wrong = honest["c02"] - task.w0, noise["c02"] - task.w0
    assert float(wrong.sq()) == pytest.approx(float(true.sq()), rel=1e-3)  # as long, in another direction
    assert abs(float(true.dot(wrong))) < 0.9 * float(true.sq())


def test_a_replaying_client_sends_how_the_model_moved_also_after_a_stop(
    task: Task, clients_data: dict[str, ClientData]
) -> None:
    method, names = Talks(task), sorted(clients_data)
    inner, first, second = Loop(clients_data), task.w0, task.w0 * 3.0

    def asked(number: int, sent: Any) -> Any:
        hostile = Hostile(inner, ["c02"], "replay")  # a new one each time, as after a stop
        hostile.begin(method, Turn(number, names, names, number))
        return hostile.ask(collect(method.train, names, sent))["c02"]

    assert (asked(0, first) - first).sq() == 0  # nothing moved before the first round
    assert (asked(1, second) - task.w0 * 5.0).sq() < 1e-9  # 3 w0 + (3 w0 - w0)


def test_inflated_numbers_weigh_ten_times_as_much(task: Task, clients_data: dict[str, ClientData]) -> None:
    method, names = Talks(task), ["c01", "c02"]
    inner = Loop(clients_data)
    hostile = Hostile(inner, ["c02"], "inflate")
    hostile.begin(method, Turn(0, names, names, 5))
    each = hostile.ask(collect(method.train, names, task.w0))
    mean = hostile.ask(average(method.train, names, task.w0))
    one, two = (clients_data[c].total for c in names)
    expected = (each["c01"] * one + each["c02"] * (10 * two)) / (one + 10 * two)
    assert (mean - expected).sq() < 1e-9
