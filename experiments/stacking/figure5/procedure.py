"""Figure 5: natural clients; every client has a row of its own below its data set's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, by_client, means, results_of


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for row, found in results_of(settings, out, jobs, say).items():
        rows[row] = as_row([means(r) for r in found], found)
        for name, baseline, held, pooled in by_client(found):
            rows[f"{row}: {name}"] = as_row([{"baseline": baseline, "held": held, "pooled": pooled}], ())
    return rows
