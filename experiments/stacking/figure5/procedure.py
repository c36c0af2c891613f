"""Figure 5: natural clients; every client has a row of its own below its data set's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from motet.runs import experiment

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper_figures import as_row, by_client, claims, means, results_of, with_interval
from pictures import natural


def perform(settings: Mapping[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    results = results_of(settings, out, jobs, say)
    for row, found in results.items():
        rows[row] = as_row([means(r) for r in found], found)
        say(f"  {row}, {len(found)} seeds: {claims(found)}")
        for name, values in by_client(found).items():
            say(f"    {name}: " + ", ".join(f"{k} {with_interval(v)}" for k, v in values.items()))
            rows[f"{row}: {name}"] = {"values": values, "failures": []}
    say(f"  {natural(results, experiment.find('stacking/figure5').expected, out / 'figure5.png')}")
    return rows
