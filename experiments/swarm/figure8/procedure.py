"""Fixed and adaptive alphas side by side: test MSE after 10^5 epochs and at the end, and the curves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import boston


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    names = settings["rows"]
    lists = {
        "alphas": [float(n.split()[1]) for n in names],
        "adapts": [n.startswith("adaptive") for n in names],
    }
    results = dict(zip(names, boston.perform(settings, lists, out, jobs, say), strict=True))
    curves = {name: (one["epochs"], boston.mse(one["trail"])) for name, one in results.items()}
    say(f"  {boston.draw(curves, out / 'figure8.png', 'w1 = 0, w2 = 0.6', skip=1)}")
    return {name: as_row(one) for name, one in results.items()}


def as_row(one: dict[str, Any]) -> dict[str, Any]:
    test, train = (boston.mse(one["trail"], part) for part in ("test", "train"))
    early = [i for i, e in enumerate(one["epochs"]) if e == 100_000]
    values = {"test at 10^5": test[early[0]].tolist() if early else []}
    values |= {"test": test[-1].tolist(), "train": train[-1].tolist()}
    return {"values": values, "failures": [], "seconds": one["seconds"]}
