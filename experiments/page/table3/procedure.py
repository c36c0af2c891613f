"""Table 3: CIFAR-100 split by sizes or by classes, for PAGE and the personalised methods."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired
import sets


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: sets.Rows = {}
    for skew in dict.fromkeys(row.split(": ")[0] for row in settings["rows"]):
        kind, much = skew.split()
        split = (
            ["data.split=lognormal", f"data.sigma={much}"] if kind == "quantity" else [f"data.alpha={much}"]
        )
        wanted = [row.split(": ")[1] for row in settings["rows"] if row.startswith(f"{skew}: ")]
        done = sets.ran(
            "page/table1-cifar100", settings["scale"], wanted, settings["seeds"], split, out / skew, jobs, say
        )
        for line in paired.lines(done):
            say(f"{skew}: {line}")
        rows |= sets.scores(
            done,
            lambda row, skew=skew: f"{skew}: {row}",
            {"global": "server_test", "local": "after_training"},
        )
    return rows
