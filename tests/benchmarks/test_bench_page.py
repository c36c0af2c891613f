"""The harness is whole, and its page of results can be made again from what was kept."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import bench

HERE = Path(bench.__file__).parent


def test_the_page_has_a_row_for_every_side_that_was_measured(tmp_path: Path) -> None:
    for kept in (HERE / "results").glob("W?.json"):
        shutil.copy(kept, tmp_path)
    bench.tables.write(tmp_path, "python benchmarks/bench.py")
    page = (tmp_path / "README.md").read_text()
    assert all(f"\n| {side} " in page for side in ("plain", "motet", "motet-compiled", "flwr", "pfl"))
