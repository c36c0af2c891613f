"""Curves of some settings of Table 1. Its runs are made if they are not there yet, and used if they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motet.runs import experiment as experiments

sys.path.insert(0, str(Path(__file__).parents[1]))
import boston


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    table1 = experiments.find("swarm/table1").at(out.name)
    w1, w2 = boston.shares(table1["rows"])
    there = out.parents[1] / "table1" / out.name
    results = boston.perform(table1, {"w1s": w1, "w2s": w2}, there, jobs, say)
    chosen = {k: v for k, v in zip(table1["rows"], results, strict=True) if k in settings["rows"]}
    curves = {name: (one["epochs"], boston.mse(one["trail"])) for name, one in chosen.items()}
    say(
        f"  {boston.draw(curves, out / 'figure7.png', 'adaptive alpha', skip=len(results[0]['epochs']) // 10)}"
    )
    return {name: as_row(one["epochs"], curves[name][1]) for name, one in chosen.items()}


def as_row(epochs: Any, test: Any) -> dict[str, Any]:
    places = {"1/10": 0.1, "1/2": 0.5, "9/10": 0.9}
    values = {name: test[round(share * (len(epochs) - 1))].tolist() for name, share in places.items()}
    return {"values": values, "failures": []}
