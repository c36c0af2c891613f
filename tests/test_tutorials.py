"""The tutorials and the first page: every command in them runs, in order, as a reader would type it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs/start.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]


def commands(page: Path) -> list[str]:
    return re.findall(r"^ {4}(motet .*)$", page.read_text(), re.MULTILINE)


def patients(folder: Path) -> None:
    """The table of the first page."""
    import numpy as np

    draw = np.random.default_rng(0)
    x = draw.standard_normal((200, 2))
    outcome = np.where(x.sum(1) + draw.standard_normal(200) > 0, "ill", "well")
    who = draw.choice(["north", "south", "east"], 200)
    frame = pd.DataFrame({"age": 50 + 10 * x[:, 0], "dose": x[:, 1], "outcome": outcome, "hospital": who})
    frame.to_csv(folder / "patients.csv", index=False)


def has_heart() -> bool:
    return (Path(os.environ.get("MOTET_DATA", "")) / "heart_disease").is_dir() and "MOTET_DATA" in os.environ


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if page.stem == "hospitals" and not has_heart():
        pytest.skip("heart is not here: MOTET_DATA names no folder with it")
    patients(tmp_path)
    found = [c for c in commands(page) if not c.startswith("motet data fetch")]
    assert len(found) >= 2
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "MOTET_CACHE": str(tmp_path / "cache")}
    for command in found:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda p: p.stem)
def test_a_tutorial_begins_with_a_question_and_ends_with_a_picture(page: Path) -> None:
    text = page.read_text()
    assert text.splitlines()[0].endswith("?") and "![" in text


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell as a notebook would run it: the value of its last line is shown as HTML or text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    book = json.loads((ROOT / "docs/tutorials/first-steps.ipynb").read_text())
    known: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell("".join(c["source"]), known) for c in book["cells"] if c["cell_type"] == "code"]
    text = "\n".join(shown)
    assert "labels" in text and "<table" in text and "p(ill)" in text
    assert (tmp_path / "table.md").exists()


def run_cell(code: str, known: dict[str, Any]) -> str:
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), known)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), known)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
