"""One whole `motet run` as a process of its own: what it cost, and what it reached.

Knows the command line, the run's folder and the operating system's accounts. Knows nothing of workloads. Time of the
processor is that of all threads and all children of the run, compilers included; wall time is what a person waits for.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import runs

Record = dict[str, Any]


def measured(words: list[str]) -> Record:
    """Run `motet run` with these settings once, in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "motet.cli.main", "run", *words, "--trust", "--json", "--quiet"]
        load, began = os.getloadavg()[0], time.perf_counter()
        process = subprocess.Popen(
            [*command, "--out", str(out)], stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - began
        if process.returncode:
            raise RuntimeError(f"motet run ended with exit code {process.returncode}: {shlex.join(words)}")
        costs = {"wall_seconds": wall, "processor_seconds": used.ru_utime + used.ru_stime}
        return {
            "command": shlex.join(["motet", "run", *words, "--trust"]), "date": runs.now(),
            "load_before": round(load, 2),
            **{name: round(seconds, 2) for name, seconds in costs.items()}, "peak_mib": round(used.ru_maxrss / 1024),
            "rounds_seconds": rounds_of(out), "summary": json.loads(said),
        }  # fmt: skip


def environment() -> dict[str, str]:
    """Data functions of this folder can be named in a recipe; motet is the one that runs this script."""
    path = [str(runs.HERE), str(runs.HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def rounds_of(folder: Path) -> list[float]:
    """Seconds of each round, from the run's own table."""
    import pandas as pd

    return [round(float(s), 4) for s in pd.read_parquet(folder / "rounds.parquet")["seconds"]]


def conditions() -> Record:
    """What every file of results says about where it comes from."""
    return {"machine": runs.machine(), "code": runs.code_version(), "written_by": written_by()}


def written_by() -> str:
    script = os.path.relpath(sys.argv[0], runs.HERE.parent)
    return shlex.join(["python", script, *sys.argv[1:]])


def box(kept: Record) -> str:
    """Machine, versions and commit in one sentence."""
    machine = kept["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}, "
        f"torch {machine['torch']}; code {kept['code']}"
    )
