"""What replies must look like is known from a blank client, for every method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from motet.core import Ask, Method
from motet.engines.expect import Expect
from motet.engines.letters import Reply
from motet.engines.loop import Loop
from motet.engines.talk import play, start
from motet.local import Home
from motet.runs.recipe import method_class, method_names
from motet.vec import Vec
from motet.wire import WireError
from rounds import server_examples, turn


class Strict(Loop):
    """A loop that reads every reply from bytes, and takes only what has the expected form."""

    def __init__(self, homes: dict[str, Home], task: Any) -> None:
        super().__init__(homes)
        self.expect, self.asked = Expect(task, (6,)), 0

    def replies(self, ask: Ask) -> Iterator[tuple[str, Any]]:
        like = self.expect.like(self.method, self.turn, ask)
        assert like is not None
        for client, tree in super().replies(ask):
            self.asked += 1
            yield client, Reply.read(Reply(tree, 1).pack(), None, like, loose=ask.learn == "all").tree


@pytest.fixture(params=method_names())
def method(request: pytest.FixtureRequest, task: Any) -> Method:
    return method_class(request.param)(task)


def test_every_reply_of_every_method_is_as_expected(method: Method, homes: dict[str, Home]) -> None:
    engine = Strict(dict(list(homes.items())[:3]), method.task)
    proxy = server_examples()
    state = start(engine, method, turn(engine, -1, proxy))
    for number in range(2):
        state = play(engine, method, state, turn(engine, number, proxy))
    assert engine.asked


def test_a_reply_of_another_shape_is_no_reply(task: Any, homes: dict[str, Home]) -> None:
    method, expect = method_class("fedavg")(task), Expect(task, (6,))
    ask = Ask(method.train, ["c00"], method.task.w0)
    like = expect.like(method, turn(Loop(homes), 0), ask)
    w = task.w0
    first = next(iter(w))
    for wrong in (w.drop([first]), Vec(w | {first: torch.zeros(2)}), w.map(lambda a, _: a.double()), (), [w]):
        with pytest.raises(WireError):
            Reply.read(Reply(wrong, 3).pack(), like=like)
    assert Reply.read(Reply(w, 3).pack(), like=like).n == 3
    assert Reply.read(Reply(refusal="no").pack(), like=like).refusal == "no"
