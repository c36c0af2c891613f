"""What a stranger may send: each is refused with the client's name, and the others go on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from motet.published import ModelRefused, Published, Runner, predict
from motet.published.folder import load, save
from strangers import HOSTILE, LIMITS, NAMES, X, honest, stalling


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(LIMITS) as r:
        yield r


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_by_name_and_the_others_go_on(name: str, runner: Runner) -> None:
    make, reason = HOSTILE[name]
    one, other = honest("one"), honest("other")
    found, refused = predict([one, make(), other], X, NAMES, runner=runner)
    assert set(found) == {"one", "other"}
    assert list(refused) == ["mallory"]
    assert refused["mallory"].startswith("client mallory: ")
    assert pytest.approx(1) == found["other"].sum(1)
    assert re.search(reason, refused["mallory"]), refused["mallory"]


def test_all_of_them_at_once_leave_the_honest_ones(runner: Runner) -> None:
    models = [
        m for i, (make, _) in enumerate(HOSTILE.values()) for m in (_as(make(), f"m{i}"), honest(f"h{i}"))
    ]
    found, refused = predict(models, X, NAMES, runner=runner)
    assert set(found) == {f"h{i}" for i in range(len(HOSTILE))}
    assert set(refused) == {f"m{i}" for i in range(len(HOSTILE))}
    assert all(reason.startswith(f"client {who}: ") for who, reason in refused.items())


def _as(model: Published, client: str) -> Published:
    return replace(model, manifest=replace(model.manifest, client=client))


def test_the_children_of_small_models_are_small() -> None:
    sizes = {name: len(make().model) for name, (make, _) in HOSTILE.items() if "GB" in name}
    assert max(v for k, v in sizes.items() if k.split()[2:] != ["secret", "doubling"]) < 4096


def test_a_file_of_2_gb_is_not_read(tmp_path: Any) -> None:
    save(honest(), tmp_path)
    with open(tmp_path / "honest.onnx", "r+b") as f:
        f.truncate(2 << 30)  # a sparse file: no 2 GB are written
    with pytest.raises(ModelRefused, match="client honest: its model's file has 2147483648 bytes"):
        load(tmp_path, "honest")


def test_a_model_goes_through_a_folder(tmp_path: Any) -> None:
    one = honest("a/b")
    save(one, tmp_path)
    assert load(tmp_path, "a/b") == one


def test_a_refused_model_is_not_tried_again() -> None:
    with Runner(LIMITS) as runner:
        first = predict([stalling()], X, NAMES, runner=runner)[1]
        assert runner._child is None  # it was ended
        assert predict([stalling()], X, NAMES, runner=runner)[1] == first
        assert runner._child is None


def test_a_child_that_stands_still_is_ended_in_time() -> None:
    with Runner(replace(LIMITS, wall=3)) as runner:
        predict([honest("one")], X, NAMES, runner=runner)
        assert runner._child
        os.kill(runner._child.process.pid, signal.SIGSTOP)
        refused = predict([honest("two")], X, NAMES, runner=runner)[1]
        assert refused == {"two": "client two: its model did not answer within 3 s"}
        assert set(predict([honest("three")], X, NAMES, runner=runner)[0]) == {"three"}


def test_a_child_that_talks_nonsense_is_replaced() -> None:
    with Runner(LIMITS) as runner:
        one = honest("one")
        sane = predict([one], X, NAMES, runner=runner)[0]["one"]
        assert runner._child
        before = runner._child.process.pid
        with open(f"/proc/{before}/fd/3", "wb") as answers:
            answers.write(b"\xff" * 100)
        np.testing.assert_array_equal(predict([one], X, NAMES, runner=runner)[0]["one"], sane)
        assert runner._child and runner._child.process.pid != before


def test_threads_share_a_child(runner: Runner) -> None:
    models = [honest(f"h{i}") for i in range(4)]
    alone = [predict([m], X, NAMES, runner=runner)[0][m.client] for m in models]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda m: predict([m], X, NAMES, runner=runner)[0][m.client], models * 5))
    for i, found in enumerate(together):
        np.testing.assert_array_equal(found, alone[i % 4])


def test_a_child_that_dies_between_models_is_replaced(runner: Runner) -> None:
    predict([honest("one")], X, NAMES, runner=runner)
    assert runner._child
    runner._child.process.kill()
    runner._child.process.wait()
    assert set(predict([honest("two")], X, NAMES, runner=runner)[0]) == {"two"}


def test_a_child_can_open_no_file(runner: Runner) -> None:
    predict([honest("one")], X, NAMES, runner=runner)
    assert runner._child
    with open(f"/proc/{runner._child.process.pid}/limits") as f:
        limits = {line[:26].strip(): line[26:].split() for line in f}
    assert limits["Max open files"][:2] == ["4", "4"]
    assert limits["Max file size"][:2] == ["0", "0"]
    assert limits["Max address space"][0].isdigit()


def test_two_models_of_one_client_are_not_both_taken() -> None:
    found, refused = predict([honest("a"), honest("a")], X, NAMES)
    assert set(found) == {"a"}
    assert refused == {"a": "client a: it published two models"}
