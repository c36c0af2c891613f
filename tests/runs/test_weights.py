"""Runs that start from stored weights: they begin where another ended, and notice if the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from motet.nets import NetError
from motet.runs.build import federated_data, resolve, task_of
from motet.runs.recipe import read
from motet.runs.run import RunError, folder_for, run

WORDS = [
    "data=wine",
    "data.clients=3",
    "data.unseen=0",
    "net=mlp",
    "net.hidden=[8]",
    "train.rounds=2",
    "method.lr=0.1",
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    done = run(read(None, [*WORDS, "save.models=global"]), tmp_path / "first")
    assert not list((done.folder / "models").iterdir())  # of the clients' models, none
    return done.folder / "global.safetensors"


def test_a_run_starts_from_the_weights_of_a_file(model: Path, tmp_path: Path) -> None:
    recipe = read(None, [*WORDS, f"net.weights={model}", "seed=5"])
    found = task_of(recipe, federated_data(recipe)).w0
    assert all(torch.equal(found[k], v) for k, v in load_file(model).items())
    assert run(recipe, tmp_path / "second").facts["status"] == "done"


def test_a_second_network_may_have_options_and_weights(model: Path) -> None:
    recipe = read(None, ["data=wine", "data.clients=3", "data.unseen=0", "net=mlp"])
    task = task_of(recipe, federated_data(recipe))
    assert task.other("mlp hidden=[8]").w0.keys() == load_file(model).keys()
    found = task.other(f"mlp hidden=[8] weights={model}").w0
    assert all(torch.equal(found[k], v) for k, v in load_file(model).items())


def test_other_weights_under_the_same_name_are_another_run(model: Path, tmp_path: Path) -> None:
    recipe = read(None, [*WORDS, f"net.weights={model}"])
    before = resolve(recipe)
    run(recipe, tmp_path / "second")
    save_file({k: v + 1 for k, v in load_file(model).items()}, model)
    after = resolve(recipe)
    assert after.fingerprint != before.fingerprint and folder_for(after) != folder_for(before)
    with pytest.raises(RunError, match="weights to start from, changed"):
        run(recipe, tmp_path / "second")


def test_runs_without_weights_are_what_they_were() -> None:
    recipe = read(None, WORDS)
    without = read(None, WORDS)
    del without.settings["net"]["weights"]
    assert recipe.identity() == without.identity()
    assert recipe.identity() != read(None, [*WORDS, "net.weights=a.safetensors"]).identity()


def test_weights_that_do_not_fit_are_refused(model: Path, tmp_path: Path) -> None:
    wide = read(None, [*WORDS, "net.hidden=[9]", f"net.weights={model}"])
    with pytest.raises(NetError, match=r"(?s)of another net: \d tensors differ.*hint: use the net"):
        run(wide, tmp_path / "wide")
    with pytest.raises(NetError, match=r"(?s)there are no weights nowhere.*hint"):
        run(read(None, [*WORDS, "net.weights=nowhere"]), tmp_path / "none")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(NetError, match="holds no weights"):
        run(read(None, [*WORDS, f"net.weights={tmp_path / 'junk'}"]), tmp_path / "junky")
