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


def cells(text: str) -> dict[str, list[str]]:
    """Rows of all tables of a page, by their first cell."""
    rows = [
        [c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {row[0].removesuffix(" (older code)"): row[1:] for row in rows}


def test_the_page_that_compares_systems_has_the_figures_of_the_results() -> None:
    page = cells(
        (HERE.parent / "docs/compare.md").read_text().partition("## How fast")[2].partition("## ")[0]
    )
    results = (HERE / "results/README.md").read_text()
    works = [cells(results.partition(f"## {w}:")[2].partition("## ")[0]) for w in ("W1", "W2", "W3")]
    sides = {
        "motet, compiled": "motet-compiled", "motet": "motet", "pfl 0.6.0, two processes": "pfl",
        "plain PyTorch loop, as lean as we can write it": "plain",
        "Flower 1.41.0 simulation, lean clients": "flwr",
        "plain PyTorch loop with `torch.optim.SGD`": "plain-optim",
        "Flower 1.41.0 simulation, clients with `torch.optim.SGD`": "flwr-optim",
        "PFLlib d832e76": "pfllib", "FL-bench 06e658b": "flbench",
        "PFLlib d832e76 with its own scoring, training sets included": "pfllib-evaluate",
    }  # fmt: skip
    for row, side in sides.items():
        assert page[row] == [work[side][0] if side in work else "–" for work in works], row
