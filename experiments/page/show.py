"""How far PAGE is above each other row, with intervals.

Serves all experiments of this folder that have no show.py of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import paired


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    return paired.lines(done)
