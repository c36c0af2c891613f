"""A federation of four families of models, in which every client lacks some columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import (
    as_row,
    gain,
    importance,
    means,
    plain,
    results_of,
)

Array = np.ndarray[Any, Any]


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    families = settings["how"]["families"]
    for row, found in results_of(settings, out, jobs, say).items():
        gains = np.array([gain(plain(r), "held") for r in found])  # (seeds, clients)
        trust = np.array([importance(plain(r)) for r in found])
        rows[row] = as_row([means(r) for r in found], found)
        rows[row]["values"] |= {k: [v] for k, v in interval(gains).items()}
        for k, family in enumerate(families):
            mine = [interval(gains[:, k :: len(families)])]
            mine[0] |= {"held": float(gains[:, k :: len(families)].mean())}
            mine[0] |= {"importance": float(trust[:, k :: len(families)].mean())}
            rows[f"publishers of {family}"] = as_row(mine, ())
    return rows


def interval(gains: Array) -> dict[str, float]:
    """95 % interval of the mean over seeds, and the share of clients that lost."""
    means = gains.mean(1)
    found = {"lost": float((gains < 0).mean())}
    if len(means) > 1:
        wide = float(t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))
        found |= {"low": float(means.mean()) - wide, "high": float(means.mean()) + wide}
    return found
