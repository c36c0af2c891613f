"""What people who write their first method or comparison get wrong, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import motet
from motet import methods, verb
from motet.runs.compare import plan
from rounds import TWO, after, apart, one_number


class NoPair(methods.FedAvg):
    """A verb that forgets what is kept."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.task.loss, w, data)


class Branches(methods.FedAvg):
    """A verb that branches on a tensor."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return (w if data.n > 5 else self.descend(self.task.loss, w, data)), keep


class PersonalLambda(methods.FedAvg):
    """A predictor that cannot be saved."""

    def personal(self, w: Any, keep: Any, data: Any) -> Any:
        return lambda x: self.task.predict(w, x)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("method", "said"),
    [
        (NoPair, "it returned Vec; a verb must return a pair"),
        (PersonalLambda, "personal returned a function; it must return functools.partial"),
    ],
)
def test_a_method_that_returns_the_wrong_thing_is_told_what_is_right(
    method: Any, said: str, engine: str, tmp_path: Path
) -> None:
    with pytest.raises(motet.MotetError, match=said):
        motet.run(method=method, data="wine", rounds=1, engine=engine, out=tmp_path)


def test_a_branch_on_a_tensor_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(motet.MotetError, match=r"may not branch on a tensor \(torch.where\)"):
        motet.run(method=Branches, data="wine", rounds=1, engine="vmap", out=tmp_path)


def test_a_comparison_of_one_method_says_how_to_name_several() -> None:
    with pytest.raises(motet.errors.RecipeError, match="(?s)several methods.*hint: --methods ditto"):
        plan(None, ["method=ditto", "data=wine"], ["fedprox"], [0])
    assert {r["method"]["name"] for r in plan(None, ["method.lr=0.2"], ["ditto"], [0])} >= {"ditto"}


def test_one_method_may_be_compared_by_its_name_alone(tmp_path: Path) -> None:
    found = motet.compare("finetune", data="wine", rounds=1, base=tmp_path)
    assert sorted(found.table["method"]) == ["fedavg", "finetune", "local"]


def test_a_keyword_that_two_sections_have_is_said_with_names() -> None:
    with pytest.raises(motet.errors.RecipeError, match="method={'name': 'feddyn', 'alpha': …}"):
        motet.run(method="feddyn", data="wine", alpha=0.1)


def test_a_clip_of_zero_is_no_clip() -> None:
    task = one_number()
    plain, zero = (
        after(method(task, lr=0.1, epochs=1, batch=2), motet_loop(), 1)
        for method in (methods.FedAvg, ClipZero)
    )
    assert apart(plain, zero) == 0 and apart(plain, task.w0) > 0


class ClipZero(methods.FedAvg):
    """FedAvg whose descent is told to clip at 0."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.task.loss, w, data, clip=0.0), keep


def motet_loop() -> Any:
    from motet.engines.loop import Loop

    return Loop(TWO)


def test_statistics_that_do_not_exist_are_shown() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    net.statistics = "avg"  # type: ignore[assignment]
    with pytest.raises(motet.MotetError, match="(?s)is 'avg'.*averaged, local, shared"):
        motet.Task(net, "classes", 2)
