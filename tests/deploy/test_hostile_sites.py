"""Sites that answer anything: what is no reply is left out, and the others' round goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import sites
from motet.client import Batch
from motet.engines.driver import play, start
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare
from motet.engines.letters import Letter, Reply
from motet.engines.loop import Loop
from motet.vec import Vec
from motet.wire import pack

METHOD = sites.method(sites.recipe("fedavg"))
W = METHOD.task.w0
BENT = Vec(W | {"fc1.bias": torch.zeros(9)})
LIES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda r: b"",
    "no message": lambda r: b"hello" * 99,
    "another tree": lambda r: pack({"tree": 1}),
    "another shape": lambda r: Reply(BENT, 5).pack(),
    "another type": lambda r: Reply(W.map(lambda a, _: a.double()), 5).pack(),
    "no weights": lambda r: Reply((), 5).pack(),
    "text for weights": lambda r: Reply("weights", 5).pack(),
    "a weight below zero": lambda r: pack({"tree": W, "n": -5, "refusal": "", "spoilt": False}),
    "not a number": lambda r: Reply(W * torch.nan, 5).pack(),
    "too much": lambda r: Reply(W, 5).pack() + bytes(1 << 20),
    "three gigabytes": lambda r: bytes(3 << 30),  # which nobody reads, so that they cost nothing
    "cut off": lambda r: r[: len(r) // 2],
}


def lying(services: Mapping[str, Any], lie: Callable[[bytes], bytes], job: str) -> Any:
    """Letters in this process, of which site b's answers to one job are lies."""

    def post(letters: Mapping[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
        found = {s: services[s].answer(m) for s, m in letters.items()}
        wrong = {s for s, m in letters.items() if s == "b" and Letter.read(m).job == job}
        return {s: lie(r) if s in wrong else r for s, r in found.items()}, {}

    return post


def engine_with(tmp_path: Path, lie: str, job: str) -> Flare:
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}
    post = lying(services, LIES[lie], job)
    expect = ExpectedReplies(METHOD.task, (sites.FEATURES,))
    return Flare(sites.SITES, post, "r", sites.recipe("fedavg"), limit=1 << 19, expect=expect)


@pytest.mark.parametrize("lie", LIES)
def test_a_site_that_lies_is_left_out_of_the_round(tmp_path: Path, lie: str) -> None:
    engine, loop = (
        engine_with(tmp_path, lie, "verb"),
        Loop({s: h for s, h in sites.clients_data().items() if s != "b"}),
    )
    turn = sites.turn(1)
    got = play(engine, METHOD, start(engine, METHOD, sites.turn(-1)), turn)
    honest = type(turn)(1, ["a", "c"], ["a", "c"], turn.seed)
    want = play(loop, METHOD, W, honest)
    assert all(torch.equal(got[k], want[k]) for k in want)
    assert engine.keeps.get("b") is None, "what was not used did not happen"


@pytest.mark.parametrize("lie", [x for x in LIES if x != "not a number"])
def test_scores_that_are_none_are_left_out(tmp_path: Path, lie: str) -> None:
    engine = engine_with(tmp_path, lie, "evaluate")
    clients, scores = engine.evaluate(METHOD, W, sites.turn(1), "val")
    assert clients == ["a", "c"] and len(scores["global"]["n"]) == 2


def test_a_blank_client_is_never_a_persons_row() -> None:
    client_data = ExpectedReplies(METHOD.task, (6,)).blank
    assert isinstance(client_data.train, Batch) and float(client_data.train.x.abs().max()) == 0
