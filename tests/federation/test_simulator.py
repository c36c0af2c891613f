"""Every method in NVIDIA FLARE's simulator: one job, three sites in processes of their own, real group calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs the extra motet[flare]")

import sites
from motet.federation.job import write_job
from motet.federation.kits import CONTROLLER, EXECUTOR
from motet.runs.recipe import method_names

SIMULATE = """
import sys
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
sys.exit(SimulatorRunner(sys.argv[1], sys.argv[2], clients=sys.argv[3], threads=3).run())
"""


def gaps(folder: Path) -> dict[str, float]:
    """How far every method is from the loop engine, from one simulated job."""
    classes = ("simulated.Server", "simulated.Site")
    given = {"folder": str(folder)}
    write_job(folder / "job", "contract", sites.SITES, given, given, classes)
    (folder / "space" / "local").mkdir(parents=True)
    allowed = {"class_allow_list": [CONTROLLER, EXECUTOR, *classes], "class_list_enforcement_mode": "enforce"}
    (folder / "space" / "local" / "resources.json").write_text(json.dumps(allowed))
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here), *sys.path])
    command = [sys.executable, "-c", SIMULATE, folder / "job", folder / "space", ",".join(sites.SITES)]
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert (folder / "gaps.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, float] = json.loads((folder / "gaps.json").read_text())
    return found


def test_group_calls_in_the_simulator_give_what_the_loop_gives_for_every_method(tmp_path: Path) -> None:
    found = gaps(tmp_path)
    assert sorted(found) == method_names()
    assert {name: gap for name, gap in found.items() if gap > 1e-6} == {}
