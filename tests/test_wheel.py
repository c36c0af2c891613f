"""The wheel: it holds all that motet needs, and works away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a folder of its own."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "experiments"):
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    build = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(place)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    with zipfile.ZipFile(next(place.glob("motet-*.whl"))) as wheel:
        wheel.extractall(place / "site")
    return place / "site"


def motet(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from motet.cli.main import main; sys.exit(main(sys.argv[1:]))"
    env = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=installed.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_runs_and_writes_a_report_without_the_repository(installed: Path) -> None:
    done = motet(installed, "compare", "data=wine", "train.rounds=2", "--methods", "fedavg", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert list(installed.parent.glob("runs/*.html"))
    where = "import motet; print(motet.__file__)"
    env = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    said = subprocess.run([sys.executable, "-c", where], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.startswith(str(installed))


def test_experiments_are_there(installed: Path) -> None:
    done = motet(installed, "reproduce", "--list")
    assert done.returncode == 0 and "page/table1-synthetic" in done.stdout, done.stderr
    assert {p.name for p in (installed / "motet/reproductions/experiments").iterdir()} >= {"heart", "page"}
