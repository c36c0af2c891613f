"""Masked means in place of plain ones, whatever the method averages: models, groups' models, losses, sketches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import twelve_clients
from motet.client import seed_of
from motet.core import NoReply, Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.errors import RunError
from motet.guard.masks.in_process import MaskedMean
from motet.runs.build import mean_of
from motet.runs.recipe import RecipeError, method_class, read
from motet.runs.run import run
from motet.runs.sections import GuardSettings
from motet.runs.store import Store
from motet.vec import leaves
from rounds import server_examples

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "ditto": {},
    "fedperc": {},
    "swarm": {"particles": 3, "stretch": 2},
}
ENGINES: dict[str, Callable[..., Any]] = {"loop": Loop, "vmap": Vmap, "threads": partial(Threads, workers=2)}


def played(method: Any, engine: Any, rounds: int = 2) -> Any:
    def turn(number: int) -> Turn:
        return Turn(number, engine.clients, engine.clients, seed_of(5, number), server_examples())

    state = start(engine, method, turn(-1))
    for number in range(rounds):
        state = play(engine, method, state, turn(number))
    return state


def numbers(tree: Any) -> list[Tensor]:
    return [torch.as_tensor(v).double() for v in leaves(tree) if not isinstance(v, str)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ENGINES)
def test_a_masked_run_is_the_plain_run_up_to_rounding(name: str, kind: str, task: Any) -> None:
    method = method_class(name)(task, **METHODS[name])
    plain, masked = ENGINES[kind](twelve_clients()), ENGINES[kind](twelve_clients())
    masked.fold = partial(MaskedMean, 64, 4096.0, 1)
    found, want = numbers(played(method, masked)), numbers(played(method, plain))
    assert len(found) == len(want) > 0
    assert max(float((a - b).abs().max()) for a, b in zip(found, want, strict=True) if a.numel()) < 1e-4


def test_an_ask_to_fewer_clients_than_min_in_sum_fails(task: Any) -> None:
    engine = Loop({c: d for c, d in list(twelve_clients().items())[:2]})
    engine.fold = mean_of(GuardSettings(masked=True))
    with pytest.raises(NoReply, match="verb train, round 1: 2 clients sent keys, and a masked sum needs 3"):
        played(method_class("fedavg")(task), engine)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mean": "median"}, "exclude each other"),
        ({"bits": 8}, "cannot be compressed"),
        ({"top": 0.1}, "cannot be compressed"),
        ({"mask_bits": 32, "mask_range": 1e5}, "too few behind the point"),
    ],
)
def test_a_recipe_whose_guards_exclude_each_other_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        read(more={"guard": {"masked": True} | settings})


def test_a_run_whose_numbers_do_not_fit_has_failed_and_says_whose(tmp_path: Path) -> None:
    words = ["data=wine", "data.clients=3", "data.unseen=0", "train.rounds=2", "method.lr=0.1"]
    with pytest.raises(RunError, match=r"client client-\d: its reply has a number as large as"):
        run(read(None, [*words, "guard.masked=true", "guard.mask_range=0.001"]), tmp_path / "r")
    facts = Store(tmp_path / "r").facts()
    assert facts["status"] == "failed" and "guard.mask_range=0.001\nhint:" in facts["failure"]
