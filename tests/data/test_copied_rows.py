"""A client that trains on test rows of another is named; rows that repeat by chance are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from motet.data.copied_rows import remarks
from motet.data.load import load
from motet.report.read import read as read_runs
from motet.runs.recipe import read
from motet.runs.run import run


def table(path: Path, different: int | None = None, copy: bool = False) -> Path:
    """Three clients of a hundred rows each, of which the third may hold those of the second, in another order."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"u": rng.normal(size=300), "v": rng.normal(size=300)})
    if different:
        frame = frame.iloc[np.arange(300) % different].reset_index(drop=True)
    frame["y"] = np.where(frame["u"] > 0, "ill", "well")
    frame["site"] = np.repeat(list("abc"), 100)
    if copy:
        frame.iloc[200:, :3] = frame.iloc[100:200, :3].sample(frac=1, random_state=1).to_numpy()
    frame.to_csv(path, index=False)
    return path


def said(path: Path) -> list[str]:
    return remarks(load(str(path), {"target": "y", "client": "site", "unseen": 0.0}))


def test_a_client_that_holds_the_rows_of_another_is_named_with_it(tmp_path: Path) -> None:
    (found,) = said(table(tmp_path / "t.csv", copy=True))
    assert found.startswith("clients hold the same rows, and scores are too good by it: ")
    assert "of 25 test rows of b are training rows of c" in found
    assert "of 25 test rows of c are training rows of b" in found and " of a " not in found


def test_nothing_is_said_of_different_rows_and_of_few_that_repeat_everywhere(tmp_path: Path) -> None:
    assert said(table(tmp_path / "t.csv")) == []
    assert said(table(tmp_path / "u.csv", different=7)) == []


def test_a_run_and_its_report_say_it(tmp_path: Path) -> None:
    words = ["data.target=y", "data.client=site", "method=fedavg", "train.rounds=1", "net=linear"]
    done = run(read(words=[f"data={table(tmp_path / 't.csv', copy=True)}", *words]), tmp_path / "r")
    (reported,) = read_runs([done.folder])
    assert [n for n in reported.notes if n.startswith("Clients hold the same rows")]
