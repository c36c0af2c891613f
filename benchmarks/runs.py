"""One measurement: which sides there are, how one is run, and where what it said is kept.

Knows subprocesses, git and the files results/<work>.json. Knows nothing of tables.
A run is kept under its key: side, variant, rounds, data, code and which repetition. One that succeeded is
not run again; one that failed is kept to be shown, and tried again next time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import envs
from workloads import Work, recipe

HERE = Path(__file__).resolve().parent
PATIENCE = 3600  # seconds that a side may take
Run = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """A row of the results: a script with its arguments, in its environment, for some families of works."""

    name: str
    script: str
    families: tuple[str, ...]
    env: str = ""
    extra: tuple[str, ...] = ()
    checkout: str = ""  # environment variable that names a folder with the peer's sources

    @property
    def here(self) -> bool:
        """Whether what the side calls is on this machine, or can be installed."""
        return not self.checkout or Path(os.environ.get(self.checkout) or "/nowhere").is_dir()

    @property
    def group(self) -> str:
        """What --sides calls it: plain and plain-nchw are both "plain"."""
        return self.name.partition("-")[0]


SIDES = [
    Side("plain", "plain_side.py", ("W1", "W2", "W3", "W4")),
    Side("plain-nchw", "plain_side.py", ("W2", "W3"), extra=("--variant", "nchw")),
    Side("plain-optim", "plain_side.py", ("W1",), extra=("--variant", "optim")),
    Side("motet", "motet_side.py", ("W1", "W2", "W3", "W4")),
    Side("motet-compiled", "motet_side.py", ("W1", "W4"), extra=("--compiled",)),
    Side("flwr", "flwr_side.py", ("W1", "W2", "W3"), env="flwr"),
    Side("flwr-optim", "flwr_side.py", ("W1",), env="flwr", extra=("--variant", "optim")),
    Side("pfl", "pfl_side.py", ("W1", "W2", "W3"), env="pfl"),
    Side("pfl-single", "pfl_side.py", ("W1", "W2", "W3"), env="pfl", extra=("--variant", "single")),
    Side("pfllib", "pfllib_side.py", ("W1", "W2", "W3"), env="pfllib", checkout="MOTET_PFLLIB"),
    Side(
        "pfllib-evaluate", "pfllib_side.py", ("W1", "W2", "W3"), env="pfllib", extra=("--variant", "evaluate"),
        checkout="MOTET_PFLLIB",
    ),
    Side("flbench", "flbench_side.py", ("W1", "W2", "W3"), env="flbench", checkout="MOTET_FLBENCH"),
]  # fmt: skip


@dataclass
class Book:
    """The runs of one work, in a file that is written after every run."""

    path: Path
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.runs = json.loads(self.path.read_text())["runs"]

    def find(self, key: Run) -> Run | None:
        """The run with this key that succeeded."""
        return next((run for run in self.runs if run["key"] == key and "error" not in run), None)

    def forget(self, sides: set[str]) -> None:
        """What was measured of these sides; the file follows with the next run that is kept."""
        self.runs = [run for run in self.runs if run["key"]["side"] not in sides]

    def keep(self, run: Run) -> None:
        """Keep a run in place of older runs of the same repetition of the same side."""
        place = ("side", "work", "repetition")
        self.runs = [old for old in self.runs if any(old["key"][k] != run["key"][k] for k in place)]
        self.runs.append(run)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        waiting = self.path.with_suffix(".tmp")
        waiting.write_text(json.dumps({"runs": self.runs}, indent=1) + "\n")
        waiting.replace(self.path)


def key(side: Side, work: Work, rounds: int, repetition: int, code: str) -> Run:
    """What must be equal for an old run to stand for a new one."""
    steps = {"batch": work.batch, "epochs": work.epochs, "lr": work.lr}
    return {
        "side": side.name, "work": work.name, "rounds": rounds, "repetition": repetition, "code": code,
        "data": hashlib.sha256(recipe(work).encode()).hexdigest()[:10], "steps": steps,
    }  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def perform(side: Side, work: Work, data: Path, made: Run, turn: str) -> Run:
    """Run a side once and return what it said, or its error. Runs with the same `turn` lay side by side."""
    run = {"key": made, "turn": turn, "date": now(), "machine": machine()}
    try:
        command = [envs.python(side.env), str(HERE / "sides" / side.script), "--work", work.name]
    except envs.CannotInstall as problem:
        return {**run, "error": str(problem)}
    command += ["--rounds", str(made["rounds"]), "--data", str(data), *side.extra]
    print(f"{work.name} {side.name} ({made['repetition'] + 1})", file=sys.stderr, flush=True)
    return {**run, "command": readable(command), "load_before": round(os.getloadavg()[0], 2), **said(command)}


def said(command: list[str]) -> Run:
    """The line of JSON that a side prints, or the last line of what it complained."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, complaint = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"no answer within {PATIENCE} s"}
    rows = [row for row in out.splitlines() if row.startswith("{")]
    if process.returncode or len(rows) != 1:
        return {"error": last_line(complaint) or f"exit code {process.returncode}, {len(rows)} lines of JSON"}
    return {**json.loads(rows[0]), "wall_seconds": round(time.perf_counter() - began, 2)}


def last_line(text: str) -> str:
    """The line that says what went wrong; torchrun's own last word is not it."""
    rows = [row.strip() for row in text.splitlines() if row.strip()]
    errors = [row for row in rows if "Error: " in row and "ChildFailedError" not in row]
    return (errors or rows or [""])[-1]


def readable(command: list[str]) -> str:
    """The command as one would type it in the repository's folder."""
    root = str(HERE.parent) + os.sep
    return shlex.join("python" if part == sys.executable else part.replace(root, "") for part in command)


def machine() -> Run:
    return {
        "cpu": cpu(), "cores": os.cpu_count(), "memory_gib": round(memory_gib(), 1),
        "system": platform.platform(), "python": platform.python_version(), "torch": version("torch"),
    }  # fmt: skip


def cpu() -> str:
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (row.partition(":")[2].strip() for row in rows if row.startswith("model name")), platform.machine()
    )


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def code_version() -> str:
    """The git commit, followed by a hash of the sources if they differ from it."""
    commit = git("rev-parse", "--short=12", "HEAD") or "no-commit"
    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    if commit != "no-commit" and not changed:
        return commit
    return f"{commit}+{sources_hash()}"


def git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else ""


def sources_hash() -> str:
    """Of motet and of the sides; the harness and its tables do not change what is measured."""
    digest = hashlib.sha256()
    for folder in (HERE.parent / "src", HERE / "sides"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:8]
