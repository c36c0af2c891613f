"""Table 1: the four data sets, each as its own experiment at the same scale, in one table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import sets

SETS = {
    "Synthetic": "synthetic",
    "CIFAR-100": "cifar100",
    "Tiny-ImageNet": "tiny-imagenet",
    "Shakespeare": "shakespeare",
}


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: sets.Rows = {}
    for title, name in SETS.items():
        wanted = [row.removeprefix(f"{title}: ") for row in settings["rows"] if row.startswith(f"{title}: ")]
        if wanted:
            done = sets.ran(
                f"page/table1-{name}", settings["scale"], wanted, settings["seeds"], [], out, jobs, say
            )
            rows |= sets.scores(
                done,
                lambda row, title=title: f"{title}: {row}",
                {"global": "server_test", "local": "after_training"},
            )
    return rows
