"""The seed of the split is not the seed of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import motet
from motet.runs import experiment as experiments
from motet.runs import recipe as recipes
from motet.runs.build import federated_data, resolve
from motet.runs.recipe import Recipe

WINE: dict[str, Any] = {"data": {"name": "wine", "clients": 4}, "net": "logistic"}


def split_of(**given: Any) -> str:
    data = WINE["data"] | ({"seed": given.pop("split")} if "split" in given else {})
    return federated_data(recipes.read(more={"data": data} | given)).fingerprint()


def test_another_seed_keeps_the_split_and_another_data_seed_draws_it_anew() -> None:
    assert split_of(seed=0) == split_of(seed=3) == split_of(seed=0, split=0) != split_of(seed=3, split=3)


def test_initial_weights_come_from_the_seed_alone() -> None:
    def weights(seed: int, split: int) -> Any:
        made = recipes.read(more={"data": WINE["data"] | {"seed": split}, "net": "mlp", "seed": seed})
        return next(iter(resolve(made).task.w0.values()))

    assert (weights(1, 0) == weights(1, 2)).all() and not (weights(1, 0) == weights(2, 0)).all()


def test_a_stored_run_without_data_seed_keeps_the_split_that_its_seed_drew() -> None:
    now = recipes.read(more={"data": WINE["data"] | {"seed": 3}, "seed": 3})
    stored = now.settings | {"data": {k: v for k, v in now["data"].items() if k != "seed"}}
    old = Recipe(stored)
    assert old["data"]["seed"] == 3 and old.identity() == now.identity()
    assert recipes.read(more={"seed": 3})["data"]["seed"] == 0  # as a person writes it


def test_runs_on_two_splits_are_two_runs() -> None:
    a, b = (recipes.read(more={"data": WINE["data"] | {"seed": s}}) for s in (0, 1))
    assert a.identity() != b.identity()


def rows(many: int = 40) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(many, 3))
    return x, (x[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("data", "natural"), [("wine", False), ({"north": rows(), "south": rows()}, True), ("synthetic", False)]
)
def test_a_run_says_which_split_it_had_and_whether_clients_are_the_same_in_every_split(
    data: Any, natural: bool, tmp_path: Path
) -> None:
    clients = {"clients": 3} if isinstance(data, str) else {}
    done = motet.run(data=data, seed=1, rounds=1, unseen=0.0, net="logistic", out=tmp_path, **clients)
    assert (done.facts["seed"], done.facts["split"], done.facts["natural"]) == (1, 0, natural)


def test_a_seed_of_an_experiment_draws_the_split_too_unless_the_recipe_says_which() -> None:
    assert experiments.seeded({"data": "wine"}, 2) == {"data": {"name": "wine", "seed": 2}, "seed": 2}
    assert experiments.seeded({"data": {"seed": 0}}, 2)["data"]["seed"] == 0
