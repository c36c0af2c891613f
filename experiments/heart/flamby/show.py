"""Cell by cell beside FLamby's: how many test rows of each hospital are predicted rightly, for every seed.

published_cells.json has the numbers of rows of flamby/results/results_benchmark_fed_heart_disease (FLamby edacf54):
the four hospitals, and all test rows together. For the latter FLamby standardises columns by the training rows of
all hospitals together, although clients trained on columns standardised at each of them; so it is done here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from motet.data.federated import PARTS
from motet.data.files.cache import arrays
from motet.data.sets.heart import HOSPITALS, flamby_pool
from motet.runs.run import Run
from motet.text import aligned

PUBLISHED = json.loads((Path(__file__).parent / "published_cells.json").read_text())


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    lines, pool = [], flamby_pool(arrays("heart"))
    for row in dict.fromkeys(d.planned.row for d in done if d.planned.row in PUBLISHED):
        some = [d for d in done if d.planned.row == row and not d.failure]
        found = {str(d.planned.seed): cells(d.folder, pool) for d in some}
        lines += [*compared(row, found), ""]
    return lines


def cells(folder: Path, pool: Any) -> list[int]:
    """Rows that the global model predicts rightly: of each hospital, and of all by columns standardised together."""
    test = Run(folder).test.query("side == 'global'").set_index("client")
    right = [round(test.loc[h, "accuracy"] * test.loc[h, "n"]) for h in HOSPITALS]
    train, tested = (pool.part == PARTS.index(p) for p in ("train", "test"))
    x = (pool.x - pool.x[train].mean(0)) / (pool.x[train].std(0, ddof=1) + 1e-9)
    w = load_file(folder / "global.safetensors")
    ill = x[tested] @ w["head.weight"][0] + w["head.bias"][0] > 0
    return [*right, int((ill == pool.y[tested]).sum())]


def compared(row: str, found: dict[str, list[int]]) -> list[str]:
    """Rows predicted rightly less those published, by seed, and how many cells are equal."""
    away = {seed: np.subtract(mine, PUBLISHED[row][seed]).tolist() for seed, mine in found.items()}
    flat = [abs(v) for mine in away.values() for v in mine]
    head = [("seed", *HOSPITALS, "all")]
    rows = [(seed, *(f"{v:+d}" if v else "equal" for v in mine)) for seed, mine in away.items()]
    equal, near = flat.count(0), flat.count(1)
    more = len(flat) - equal - near
    said = f"{row}: {equal} of {len(flat)} published cells equal, {near} one test row away, {more} more"
    return [said, *aligned([*head, *rows])]
