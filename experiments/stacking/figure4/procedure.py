"""Figure 4: all clients hold all rows and some of the columns; and what a leak of test rows is worth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, by_columns, means, results_of


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    results = results_of(settings, out, jobs, say)
    return {row: as_row([means(r) | by_columns([r]) for r in found], found) for row, found in results.items()}
