"""Figure 6: as Figure 4, with stacks that learn from the rows that their private model knows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, means, played


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    results = played(settings, out, jobs, say)
    return {row: as_row([means(r) for r in found], found) for row, found in results.items()}
