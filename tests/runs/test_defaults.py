"""Defaults that fit the person: who is held out, which models are stored, how often clients are scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.runs.recipe import read
from motet.runs.run import run


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
