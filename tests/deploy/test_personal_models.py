"""A finished personal model at a site: written once, for its owner alone, and never replaced."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

import sites
from motet.deploy.site.personal_models import PersonalModel, save_personal_model
from motet.deploy.site.policy import RefusedByPolicy
from motet.runs import recipe as recipes
from motet.vec import Vec

RECIPE = recipes.check(sites.recipe("fedper"))
FEDERATED = sites.federation({"a": sites.clients_data()["a"]})


def save(folder: Path, *values: float, as_weights: bool = True) -> None:
    trees = [
        Vec({"w": torch.full((3,), v)}) if as_weights else {"other": torch.full((3,), v)} for v in values
    ]
    model = PersonalModel(tuple(trees), "predict", {"accuracy": 0.5})
    save_personal_model(folder / "models" / "run", model, RECIPE, FEDERATED, 3, "a")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "models").iterdir()}


@pytest.mark.parametrize("as_weights", [True, False])
def test_the_same_model_again_is_fine_and_another_one_is_refused(tmp_path: Path, as_weights: bool) -> None:
    save(tmp_path, 1.0, as_weights=as_weights)
    before = contents(tmp_path)
    assert len(before) == 2  # the model and its card
    save(tmp_path, 1.0, as_weights=as_weights)
    with pytest.raises(RefusedByPolicy, match="is finished, and what came for it is another model"):
        save(tmp_path, 666.0, as_weights=as_weights)
    assert contents(tmp_path) == before


def test_a_model_and_its_card_are_for_their_owner_alone(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "models").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "models").stat().st_mode) == 0o700


def test_a_draft_that_a_crash_left_is_no_model_and_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "run.safetensors.new").write_bytes(b"half")
    save(tmp_path, 1.0)
    assert set(contents(tmp_path)) == {"run.safetensors", "run.md"}
