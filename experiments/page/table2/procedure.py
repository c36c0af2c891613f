"""Table 2: the round in which each method has converged, by one rule for all.

The global model's accuracy for the five global methods, the mean of clients' models for the others, on
validation examples: the best round before 50 without a better one; for PAGE, where both have had theirs.
Scores are taken every five rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired
import sets

COMPILED = 150  # rounds from which compiling the training pays for itself


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    words = [f"train.rounds={settings['rounds']}", "train.evaluate=5", f"data.clients={settings['clients']}"]
    words += ["engine.compile=yes"] if settings["rounds"] >= COMPILED else []
    done = sets.ran(
        "page/table1-synthetic", "desk", settings["rows"], settings["seeds"], words, out, jobs, say
    )
    for line in paired.lines(done):
        say(line)
    rows = sets.scores(done, str, {"global": "server_test", "local": "after_training"})
    for one in done:
        if not one.failure:
            ends = [sets.converged(one.folder, side, settings["patience"]) for side in sides(one.planned.row)]
            rows[one.planned.row]["values"].setdefault("round", []).append(float(max(ends)))
    return rows


def sides(row: str) -> list[str]:
    """Whose accuracy counts: PAGE's equilibrium is where neither rises."""
    local = "after_training"
    return ["global", local] if row.startswith("PAGE") else ["global"] if row in sets.GLOBAL else [local]
