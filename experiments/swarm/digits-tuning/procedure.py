"""Runs of candidates, of which only validation scores are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from motet.runs import experiment as experiments
from motet.runs.run import Run


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    planned = experiments.find("swarm/digits-tuning").plan(out.name, settings["rows"], settings["seeds"])
    done = experiments.perform(planned, out, jobs, lambda d: say(f"  {d.planned.row}: {d.failure or 'done'}"))
    rows: dict[str, Any] = {}
    for d in done:
        row = rows.setdefault(d.planned.row, {"values": {"validation": []}, "failures": [], "seconds": 0.0})
        if d.failure:
            row["failures"].append(d.failure)
            continue
        run = Run(d.folder)
        scores = run.scores
        mine = scores[(scores["part"] == "val") & (scores["side"] == "global")]
        row["values"]["validation"].append(
            float(mine[mine["round"] == mine["round"].max()]["accuracy"].mean())
        )
        row["seconds"] += run.facts["seconds"]
    return rows
