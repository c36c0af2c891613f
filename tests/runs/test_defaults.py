"""Defaults that fit the person: who is held out, which models are stored, how often clients are scored."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from motet.runs.build import resolve
from motet.runs.export import export
from motet.runs.model_files import copy_model
from motet.runs.predict import open_model, predict
from motet.runs.recipe import read
from motet.runs.run import RunError, run


def hospitals(folder: Path) -> list[str]:
    rows = [f"{i % 7},{i % 5},{'a' if i % 3 else 'b'},hospital-{i % 10}" for i in range(300)]
    (folder / "d.csv").write_text("\n".join(["x,z,y,who", *rows]))
    return [f"data={folder / 'd.csv'}", "data.target=y", "data.client=who", "train.rounds=1"]


# ---- who is held out ----


@pytest.mark.parametrize(("words", "share"), [([], 0.0), (["data.unseen=0.2"], 0.2)], ids=str)
def test_the_recipe_in_the_folder_says_who_is_held_out(
    tmp_path: Path, words: list[str], share: float
) -> None:
    done = run(read(words=[*hospitals(tmp_path), *words]), tmp_path / "r")
    assert f"\nunseen = {share} " in (tmp_path / "r" / "recipe.toml").read_text()
    assert (done.clients["seen"] == 0).sum() == 10 * share


def test_a_simulated_split_still_holds_out_a_tenth(tmp_path: Path) -> None:
    done = run(read(words=["data=wine", "data.clients=10", "train.rounds=1"]), tmp_path / "r")
    assert done.facts["settings"]["data"]["unseen"] == 0.1 and (done.clients["seen"] == 0).sum() == 1


# ---- each distinct model once ----


def weights_files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.safetensors"))


def test_equal_models_are_one_file_and_every_client_has_its_own_facts(tmp_path: Path) -> None:
    done = run(read(words=[*hospitals(tmp_path), "method=fedavg"]), tmp_path / "r")
    assert weights_files(done.folder) == ["global.safetensors"]
    assert len(list((done.folder / "models").glob("*.md"))) == 10
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    for client in ("hospital-0", "hospital-7"):
        model = done.model(client)
        assert (
            model.facts["client"] == client and model.facts["test"] and model.facts["examples"]["train"] > 0
        )
        assert model.predict(x).equals(done.model("global").predict(x))
    assert done.model("global").facts["client"] == ""


def test_a_method_without_a_global_model_shares_files_among_clients(tmp_path: Path) -> None:
    words = ["method=local", "method.lr=1e-300"]  # no step is large enough to change a weight
    done = run(read(words=[*hospitals(tmp_path), *words]), tmp_path / "r")
    assert weights_files(done.folder) == ["models/hospital-0.safetensors"]
    assert done.model("hospital-3").facts["client"] == "hospital-3"


def test_models_that_differ_have_a_file_each(tmp_path: Path) -> None:
    done = run(read(words=[*hospitals(tmp_path), "method=finetune"]), tmp_path / "r")
    assert len(weights_files(done.folder)) == 11


def test_a_shared_model_is_exported_predicts_and_survives_a_copy_of_the_folder(tmp_path: Path) -> None:
    done = run(read(words=[*hospitals(tmp_path), "method=fedavg"]), tmp_path / "r")
    shutil.copytree(done.folder, tmp_path / "copy")
    to = export(tmp_path / "copy", "hospital-4", "safetensors", tmp_path / "m.safetensors")
    assert open_model(to).facts == done.model("hospital-4").facts
    named, _ = predict(tmp_path / "copy" / "models" / "hospital-4.safetensors", tmp_path / "d.csv")
    assert named.equals(predict(to, tmp_path / "d.csv")[0])
    with pytest.raises(RunError, match="unknown client nobody"):
        done.model("nobody")


def test_a_run_with_a_file_for_each_client_is_still_read(tmp_path: Path) -> None:
    done = run(read(words=[*hospitals(tmp_path), "method=fedavg"]), tmp_path / "r")
    facts = done.model("hospital-4").facts
    copy_model(done.folder / "models" / "hospital-4.safetensors", tmp_path / "m")
    shutil.move(tmp_path / "m", done.folder / "models" / "hospital-4.safetensors")
    (done.folder / "models" / "index.json").unlink()
    assert done.model("hospital-4").facts == facts


def test_a_broken_index_says_so(tmp_path: Path) -> None:
    done = run(read(words=[*hospitals(tmp_path), "method=fedavg"]), tmp_path / "r")
    (done.folder / "models" / "index.json").write_text('{"hospital-4.safetensors": 3}')
    with pytest.raises(RunError, match=r"index.json is no index of models"):
        done.model("hospital-4")


# ---- how often clients are scored ----

PARTS = [
    "data.val=0.2",
    "data.test=0.2",
    "save.models=none",
    "method.epochs=1",
]  # each hospital: 18, 6 and 6 rows


@pytest.mark.parametrize(
    ("words", "every"),
    [
        (["train.rounds=100"], 1),  # 0.2 N forward passes against 3 * 0.6 N: a ninth
        (["train.rounds=100", "train.cohort=0.2"], 6),  # 0.2 N against 3 * 0.12 N: 5.6 tenths
        (["train.rounds=100", "train.cohort=0.2", "method.epochs=3"], 2),
        (["train.rounds=30", "train.cohort=0.2"], 3),  # ten evaluations at least
        (["train.rounds=9", "train.cohort=0.2"], 1),
        (["train.rounds=100", "train.cohort=0.2", "train.evaluate=4"], 4),
        (["train.rounds=100", "train.cohort=0.2", "train.patience=6"], 2),
        (["train.rounds=100", "method=finetune", "method.tune=1"], 10),  # as much as training itself
        (["train.rounds=100", "method=fedrecon", "net=mlp"], 10),
        (["train.rounds=100", "method=centralised", "train.cohort=0.2"], 1),
    ],
    ids=str,
)
def test_evaluation_costs_about_a_tenth_of_training(tmp_path: Path, words: list[str], every: int) -> None:
    recipe = read(words=[*hospitals(tmp_path), *PARTS, *words])
    assert resolve(recipe).recipe.train.evaluate == every


def test_the_interval_is_in_the_recipe_and_counts(tmp_path: Path) -> None:
    words = [*hospitals(tmp_path), *PARTS, "method=finetune", "train.rounds=25"]
    done = run(read(words=words), tmp_path / "r")
    assert "\nevaluate = 2 " in (tmp_path / "r" / "recipe.toml").read_text()
    scored = done.scores.query("part == 'val' and side == 'personal'")["round"].unique().tolist()
    assert scored == [*range(1, 25, 2), 24]
