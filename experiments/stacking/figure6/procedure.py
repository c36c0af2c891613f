"""Figure 6: as Figure 4, with pooled stacks; the cells of Figure 4 have them, and are made if they are not there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, means, results_of
from pictures import vertical


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    figure4 = experiment.find("stacking/figure4").at(out.name) | {k: settings[k] for k in ("rows", "seeds")}
    results = results_of(figure4, out.parents[1] / "figure4" / out.name, jobs, say)
    expected = experiment.find("stacking/figure6").expected
    out.mkdir(parents=True, exist_ok=True)
    say(f"  {vertical(results, expected, out / 'figure6.png', 'pooled', ())}")
    return {row: as_row([means(r) for r in found], found) for row, found in results.items()}
