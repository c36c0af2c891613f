"""What replies must look like is known from a blank client; tests/deploy asks it for every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from motet.core import Ask, Turn
from motet.engines.evaluate import evaluation_request
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.letters import Reply
from motet.runs.recipe import method_class
from motet.vec import Vec
from motet.wire import WireError

TURN = Turn(0, ["c00"], ["c00"], 5)


def test_a_reply_of_another_shape_is_no_reply(task: Any) -> None:
    method, w = method_class("fedavg")(task), task.w0
    like = ExpectedReplies(task, (6,)).like(method, TURN, Ask(method.train, ["c00"], w))
    first = next(iter(w))
    for wrong in (w.drop([first]), Vec(w | {first: torch.zeros(2)}), w.map(lambda a, _: a.double()), (), [w]):
        with pytest.raises(WireError):
            Reply.read(Reply(wrong, 3).pack(), like=like)
    assert Reply.read(Reply(w, 3).pack(), like=like).n == 3
    assert Reply.read(Reply(refusal="no").pack(), like=like).refusal == "no"


def test_scores_of_another_shape_are_none(task: Any) -> None:
    method, expect = method_class("fedavg")(task), ExpectedReplies(task, (6,))
    like = expect.scores(method, TURN, evaluation_request(method, task.w0, task.w0))
    assert like["global"]["accuracy"].shape == () and set(like) == {"global", "personal"}
    with pytest.raises(WireError):
        Reply.read(Reply({"global": like["global"]}).pack(), like=like)


def test_other_sides_are_expected_to_give_other_scores(task: Any) -> None:
    method, expect = method_class("fedavg")(task), ExpectedReplies(task, (6,))
    for sides in (("personal", "global"), ("constant", "alone")):
        found = expect.scores(method, TURN, evaluation_request(method, task.w0, task.w0, sides))
        assert set(found) == set(sides) - {"alone"}, "fedavg has no kind of its own to train alone"


def test_where_a_blank_client_gives_no_reply_nothing_is_expected(task: Any) -> None:
    method = method_class("fedavg")(task)
    assert ExpectedReplies(task, (6,)).like(method, TURN, Ask(method.train, ["c00"], "no weights")) is None
    assert ExpectedReplies(task, (6,)).like(method, TURN, Ask(method.train, [], task.w0)) is None


def test_a_verb_is_tried_once_for_each_form_of_what_is_sent(task: Any) -> None:
    method, expect = method_class("fedavg")(task), ExpectedReplies(task, (6,))
    for scale in (1.0, 2.0, 3.0):
        expect.like(method, TURN, Ask(method.train, ["c00"], task.w0 * scale))
    assert len(expect.known) == 1
