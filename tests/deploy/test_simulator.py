"""Every method in NVIDIA FLARE's simulator: one job, three sites in processes of their own, real group calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the flare engine needs the extra motet[flare]")

import sites
from motet.deploy.flare.job_folder import write_job
from motet.deploy.flare.kits import CONTROLLER, EXECUTOR
from motet.runs.recipe import method_names

SIMULATE = """
import sys
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
sys.exit(SimulatorRunner(sys.argv[1], sys.argv[2], clients=sys.argv[3], threads=3).run())
"""


def simulated(folder: Path) -> dict[str, Any]:
    """What one simulated job found: see simulated.py."""
    classes = ("simulated.Server", "simulated.Site")
    given = {"folder": str(folder)}
    write_job(folder / "job", "contract", sites.SITES, given, given, classes)
    (folder / "space" / "local").mkdir(parents=True)
    allowed = {"class_allow_list": [CONTROLLER, EXECUTOR, *classes], "class_list_enforcement_mode": "enforce"}
    (folder / "space" / "local" / "resources.json").write_text(json.dumps(allowed))
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here), *sys.path])
    command = [sys.executable, "-c", SIMULATE, folder / "job", folder / "space", ",".join(sites.SITES)]
    env = os.environ | {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "NVFLARE_STREAMING_MAX_BLOB_SIZE": str(4 << 20),
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert (folder / "found.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.timeout(1000)
def test_every_method_by_group_calls_is_as_on_the_loop_and_strange_messages_are_borne(tmp_path: Path) -> None:
    found = simulated(tmp_path)
    assert sorted(found["gaps"]) == sorted([*method_names(), *sites.WAYS])
    assert {name: gap for name, gap in found["gaps"].items() if gap > 1e-6} == {}
    assert found["large"].startswith("failed:")  # refused by FLARE from the stream's header
    assert found["strange"] == "refused: letter"
    assert found["neighbour"] == "caller", "a site that asks another site"
    assert found["after"] <= 1e-6  # the site lives on
