"""Figure 2: clients of different sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import Array, Result, by_size, follow
from pictures import skews


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows, results = follow(settings, out, jobs, say, by_size)
    expected = experiment.find("stacking/figure2").expected
    below = ("gain", "importance", "self")
    say(f"  {skews(results, expected, out / 'figure2.png', 'beta', part_of_rows, below)}")
    return rows


def part_of_rows(result: Result) -> Array:
    """part of all rows"""
    rows = np.array(result["clients"]["rows"], float)
    return rows / rows.sum()
