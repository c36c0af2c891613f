"""What the procedures of PAGE's tables share: runs of other experiments, and when a run has converged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from motet.report import tables
from motet.report.read import read
from motet.runs import experiment as experiments
from motet.runs.run import Run

GLOBAL = (
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "FedDyn",
    "Dap-FL",
)  # scored by the global model, others by clients'
Say = Callable[[str], None]
Rows = dict[str, dict[str, Any]]


def ran(
    name: str,
    scale: str,
    rows: Iterable[str],
    seeds: list[int],
    words: list[str],
    out: Path,
    jobs: int,
    say: Say,
) -> list[experiments.Done]:
    """Runs of an experiment at a scale, some of its rows or all, in a folder of `out`."""
    found, base = experiments.find(name), out / name.replace("/", "-")
    planned = found.plan(scale, list(rows), seeds, words, base)
    say(f"{found.title}: {len(planned)} runs")
    return experiments.perform(
        planned, base, jobs, lambda d: say(f"  {d.planned.row}: {d.failure or 'done'}")
    )


def scores(done: Iterable[experiments.Done], label: Callable[[str], str], columns: dict[str, str]) -> Rows:
    """Rows of a table: columns of the runs' summaries, by seed."""
    rows: Rows = {}
    for one in done:
        row = rows.setdefault(label(one.planned.row), {"values": {c: [] for c in columns}, "failures": []})
        if one.failure:
            row["failures"].append(one.failure)
            continue
        found = tables.summary(read([one.folder])[0])
        for column, key in columns.items():
            row["values"][column].append(found[key])
        row["seconds"] = row.get("seconds", 0.0) + float(found["seconds"])
    return rows


def converged(folder: Path, side: str, patience: int) -> int:
    """The round (from 1) in which a run's mean validation accuracy was highest, by `best_round`."""
    frame = Run(folder).scores
    means = frame[(frame["part"] == "val") & (frame["side"] == side)].groupby("round")["accuracy"].mean()
    return best_round({int(number): float(score) for number, score in means.items()}, patience) + 1


def best_round(scores: dict[int, float], patience: int) -> int:
    """The round with the highest score before `patience` rounds without a higher one.

    >>> best_round({0: 0.5, 5: 0.7, 10: 0.6, 15: 0.7, 20: 0.9}, patience=10)
    5
    """
    best = min(scores)
    for number in sorted(scores):
        if scores[number] > scores[best]:
            best = number
        if number - best >= patience:
            break
    return best
