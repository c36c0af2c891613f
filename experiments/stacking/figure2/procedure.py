"""Figure 2: clients of different sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import by_size, follow


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    return follow(settings, out, jobs, say, by_size)
