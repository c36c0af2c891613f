"""All settings of Table 1 side by side; train and test MSE of each, by swarm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import boston


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    w1, w2 = boston.shares(settings["rows"])
    results = boston.perform(settings, {"w1s": w1, "w2s": w2}, out, jobs, say)
    return {row: as_row(one) for row, one in zip(settings["rows"], results, strict=True)}


def as_row(one: dict[str, Any]) -> dict[str, Any]:
    last = one["trail"][-1:]
    far = abs(last[0, :, :-1] - boston.least_squares()).max(-1)
    values = {"train": boston.mse(last, "train")[0], "test": boston.mse(last)[0], "theta off by": far}
    return {"values": {k: v.tolist() for k, v in values.items()}, "failures": [], "seconds": one["seconds"]}
