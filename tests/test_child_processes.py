"""Processes that motet starts: none of them imports torch.py, pandas.py or json.py of the folder that it is started in.

`motet ui` in a folder of somebody else's runs would otherwise run that person's code before anybody clicked.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from motet.deploy.flare.kits import Kit
from motet.deploy.flare.process import command
from motet.published.child_process import Child
from motet.published.limits import Limits
from motet.trusted_code import own_command
from motet.web import processes
from motet.web.questions import Questions
from rooms import SOURCE

STRANGERS = (
    "torch",
    "pandas",
    "numpy",
    "motet",
    "json",
    "multiprocessing",
    "msgspec",
    "starlette",
    "nvflare",
)
STARTS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {
        *("system", "popen", "posix_spawn", "posix_spawnp", "startfile"),
        *(f"{way}{how}" for way in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    },
    "concurrent.futures": {"ProcessPoolExecutor"},
}  # fmt: skip
# files that start other programs than Python
NO_PYTHON = {
    "client/step_library.py": "compilers",
    "cli/reproduce_command.py": "git",
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with modules that say when they are run."""
    place = tmp_path / "strangers"
    place.mkdir()
    for name in STRANGERS:
        (place / f"{name}.py").write_text(f"open({str(place / f'ran-{name}')!r}, 'w').close()\n")
    monkeypatch.chdir(place)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield place
    assert sorted(p.name for p in place.glob("ran-*")) == []


# ---- in the text of the package ----


def parts_of(node: ast.AST) -> str:
    """`subprocess.Popen` of that expression; "" of others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := parts_of(node.value)):
        return f"{before}.{node.attr}"
    return ""


def starts_in(tree: ast.AST) -> list[ast.Call]:
    """Every call that starts a process, also by a name that was imported alone."""
    names = {f"{module}.{name}" for module, many in STARTS.items() for name in many}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in STARTS:
            names |= {a.asname or a.name for a in node.names if a.name in STARTS[node.module]}
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and parts_of(n.func) in names]


def offences(path: Path) -> list[str]:
    tree, place = ast.parse(path.read_text()), path.relative_to(SOURCE).as_posix()
    found: list[str] = []

    def note(node: ast.AST, text: str) -> None:
        found.append(f"{place}:{getattr(node, 'lineno', 0)} {text}")

    if place != "trusted_code.py":
        for node in ast.walk(tree):
            if parts_of(node) == "sys.executable":
                note(node, "starts Python: own_command() makes the command line")
    uses = any(isinstance(n, ast.Name) and n.id in ("own_command", "COMMAND") for n in ast.walk(tree))
    for call in starts_in(tree):
        if place not in NO_PYTHON and not uses:
            note(
                call,
                "starts a process: if it is ours, with own_command(); if not, say in NO_PYTHON what it is",
            )
        if any(k.arg == "shell" and getattr(k.value, "value", True) for k in call.keywords):
            note(call, "starts a shell")
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in modules:
            if name.partition(".")[0] in ("multiprocessing", "joblib", "loky", "pty"):
                note(node, f"imports {name}, which starts Python by itself")
    return found


def test_every_process_that_is_started_leaves_the_current_folder_off_its_path() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert [line for path in files for line in offences(path)] == []
    assert sum(len(starts_in(ast.parse(path.read_text()))) for path in files) > 8  # it finds them
    assert own_command("a.b", "c")[1:] == ["-P", "-m", "a.b", "c"]


def test_no_file_that_people_start_is_a_script_of_python() -> None:
    scripts = [p for p in SOURCE.rglob("*") if p.is_file() and p.read_bytes()[:2] == b"#!"]
    assert scripts == []
    packaging = SOURCE.parents[1] / "packaging"
    units = [line for unit in packaging.glob("*.service") for line in unit.read_text().splitlines()]
    assert [line for line in units if line.startswith("Exec") and "python" in line] == []


# ---- really started ----


def test_a_dashboard_in_the_folder_asks_and_runs_nothing_of_it(hostile: Path) -> None:
    asked = Questions()
    try:
        assert asked.ask("recipe_fields", names={"data": "digits", "net": "auto", "method": "finetune"})
    finally:
        asked.end()


def test_a_run_that_the_dashboard_starts_runs_nothing_of_the_folder(hostile: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["run", "data=wine", "method=local", "train.rounds=1", "--out", str(tmp_path / "run"), "--quiet"]
    pid = processes.start(words, log, hostile)
    child = next(p for p in processes._children if p.pid == pid)
    assert child.wait(120) == 0, log.read_text()


def test_workers_of_a_study_run_nothing_of_the_folder(hostile: Path, tmp_path: Path) -> None:
    words = [
        "data=wine",
        "--methods",
        "fedavg",
        "train.rounds=1",
        "--jobs",
        "2",
        "--out",
        str(tmp_path / "runs"),
    ]
    done = subprocess.run(
        own_command("motet.cli.main", "compare", *words, "--quiet"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_process_that_runs_models_of_others_runs_nothing_of_the_folder(hostile: Path) -> None:
    Child(Limits()).end()


@pytest.mark.xdist_group("ray")
def test_processes_of_a_ray_cluster_run_nothing_of_the_folder(hostile: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    words = [
        "run",
        "data=wine",
        "method=fedavg",
        "train.rounds=1",
        "engine.name=ray",
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(
        own_command("motet.cli.main", *words, "--quiet"), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_process_of_a_federation_runs_nothing_of_the_folder(hostile: Path, tmp_path: Path) -> None:
    words = command(Kit(tmp_path / "kit", "care", "server", "localhost", 1))
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "motet federation" in done.stderr or "FederationError" in done.stderr, done.stderr
    environment = os.environ | {"PYTHONSAFEPATH": "1"}  # as become() sets it for FLARE's own children
    flare = ["-m", "nvflare.private.fed.app.server.runner_process", "--help"]
    assert (
        subprocess.run([words[0], *flare], env=environment, capture_output=True, timeout=120).returncode == 0
    )
