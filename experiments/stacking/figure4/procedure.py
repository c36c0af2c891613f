"""Figure 4: all clients hold all rows and some of the columns; and what a leak of test rows is worth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, by_columns, means, results_of
from pictures import vertical


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    results = results_of(settings, out, jobs, say)
    expected = experiment.find("stacking/figure4").expected
    below = ("columns", "held self", "pooled self")
    say(f"  {vertical(results, expected, out / 'figure4.png', 'held', below)}")
    return {row: as_row([means(r) | by_columns([r]) for r in found], found) for row, found in results.items()}
