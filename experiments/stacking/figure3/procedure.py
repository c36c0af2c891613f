"""Figure 3: clients with different shares of the classes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import Array, Result, by_balance, by_thirds, follow
from pictures import data_sets, of_data, skews


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows, results = follow(settings, out, jobs, say, by_balance)
    expected = experiment.find("stacking/figure3").expected
    below = ("gain", "importance", "labels")
    say(f"  {skews(results, expected, out / 'figure3.png', 'alpha', positives, below)}")
    for data in data_sets(results):
        grid = by_thirds([r for found in of_data(results, data).values() for r in found])
        say(f"  {data}: trust by thirds of positives, own down, other's across: {grid.round(4).tolist()}")
    return rows


def positives(result: Result) -> Array:
    """part of positives"""
    return np.array(result["clients"]["positive"])
