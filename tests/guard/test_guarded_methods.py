"""Guards around what every method averages. A method is tested because its file is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sites
from conftest import twelve_clients
from deploy.test_masked_sites import Federation
from guard.test_masked_runs import numbers, played
from motet.core import MethodUnfit
from motet.engines.loop import Loop
from motet.guard.pairs.chain import Chain, origin
from motet.guard.pairs.clip import Clip
from motet.guard.pairs.compress import Compress
from motet.runs.method_asks import asks_in, check_guards
from motet.runs.recipe import method_class, method_names
from motet.runs.sections import GuardSettings
from motet.vec import Vec

GROUPED = ("fedperc", "grouptune", "pfa")  # rounding may put a client into another group


def fits(name: str, **guard: Any) -> bool:
    try:
        check_guards(method_class(name)(None), GuardSettings(**guard))
    except MethodUnfit:
        return False
    return True


def guarded(name: str, task: Any, *guards: Any, rounds: int = 1) -> Any:
    engine = Loop(dict(list(twelve_clients().items())[:4]))
    engine.chain = Chain(guards) if guards else None
    return played(method_class(name)(task), engine, rounds)


def gap(a: Any, b: Any) -> float:
    pairs = zip(numbers(a), numbers(b), strict=True)
    return max((float((p - q).abs().max()) for p, q in pairs if p.numel()), default=0.0)


@pytest.mark.parametrize("name", [n for n in method_names() if fits(n, bits=8) and n not in GROUPED])
def test_8_bits_change_little_whatever_a_method_sends(name: str, task: Any) -> None:
    assert gap(guarded(name, task, Compress(8)), guarded(name, task)) < 0.01


@pytest.mark.parametrize("name", [n for n in method_names() if fits(n, clip=1.0)])
def test_with_updates_cut_to_nothing_the_global_model_stays_where_it_was(name: str, task: Any) -> None:
    method = method_class(name)(task)
    before = method.global_model(guarded(name, task, Clip(1e-9), rounds=0))
    after = method.global_model(guarded(name, task, Clip(1e-9)))
    assert before is None or gap(before, after) < 1e-6


def test_an_update_of_one_part_of_what_was_sent_is_measured_from_that_part() -> None:
    w = Vec(a=torch.tensor([3.0, 4.0]))
    sent = {"w": w, "z": torch.zeros(5)}
    assert origin(Vec(a=torch.ones(2)), sent) is not None
    assert origin((w, w), {"x": w, "c": w}) is None  # two updates, as SCAFFOLD sends them
    assert origin(w, {"x": w, "c": w}) is None  # which of them it is from cannot be told


@pytest.mark.parametrize(
    ("name", "guard", "why"),
    [
        ("fedamp", {"masked": True}, "guard.masked would have no effect on fedamp"),
        ("fedamp", {"clip": 1.0, "bits": 8}, "guard.clip and guard.bits would have no effect"),
        ("swarm", {"top": 0.1}, "guard.top would have no effect"),
        ("ifca", {"clip": 1.0}, "sums with what they are to be divided by"),
        ("fedsoft", {"top": 0.5}, "sums with what they are to be divided by"),
        ("fednova", {"clip": 1.0}, "or steps"),
    ],
)
def test_a_guard_without_its_effect_is_refused(name: str, guard: dict[str, Any], why: str) -> None:
    with pytest.raises(MethodUnfit, match=why):
        check_guards(method_class(name)(None), GuardSettings(**guard))


def test_masks_go_with_all_that_is_averaged_but_not_with_the_same_replies_in_other_groups() -> None:
    assert fits("swarm", masked=True) and fits("ifca", masked=True) and fits("fedperc", masked=True)
    trials = method_class("fedperc")(None, k=0, choose_k="trials")
    with pytest.raises(MethodUnfit, match="would show single replies"):
        check_guards(trials, GuardSettings(masked=True))
    assert any(how == "average" for _, how in asks_in(method_class("fedperc")))


def test_a_site_that_clips_refuses_replies_that_are_no_updates(tmp_path: Path) -> None:
    fed = Federation(tmp_path, sites.recipe("fednova"), clip=1.0)
    assert {r.refusal for r in fed.offered.values()} == {"limits"} and "is no update alone" in fed.reason("a")
