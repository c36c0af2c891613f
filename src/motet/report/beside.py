"""Our numbers beside a paper's: one table as text or Markdown.

Knows plain data: rows with values by seed, and what a paper prints. Does not run anything.
"""

from __future__ import annotations

from statistics import mean, pstdev
from typing import Any


def cells(results: dict[str, Any]) -> list[list[str]]:
    """A head and a row for each method: ours, mean ± sd over seeds, and the paper's."""
    head = ["method"] + [text for c in results["columns"] for text in (c, "paper")] + ["minutes"]
    return [head] + [[name, *_numbers(results["columns"], row)] for name, row in results["rows"].items()]


def _numbers(columns: list[str], row: dict[str, Any]) -> list[str]:
    found = []
    for c in columns:
        found += [ours(row["values"][c]), theirs(row["paper"].get(c))]
    return [*found, f"{row['seconds'] / 60:.1f}" if "seconds" in row else "–"]


def ours(values: list[float]) -> str:
    """
    >>> ours([0.9, 0.92]), ours([0.5]), ours([])
    ('91.00 ± 1.00', '50.00', '–')
    """
    if not values:
        return "–"
    spread = f" ± {100 * pstdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread}"


def theirs(value: float | None) -> str:
    return "/" if value is None else f"{value:.2f}"


def as_text(results: dict[str, Any]) -> str:
    table = cells(results)
    wide = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, wide, strict=True)).rstrip() for row in table]
    return "\n".join([results["title"], "", *lines, *remarks(results)])


def as_markdown(results: dict[str, Any], command: str, commit: str) -> str:
    table = cells(results)
    rows = ["| " + " | ".join(row) + " |" for row in table]
    rows.insert(1, "| --- " * len(table[0]) + "|")
    seeds = max((len(v) for row in results["rows"].values() for v in row["values"].values()), default=0)
    made = f"`{command}`, commit {commit}; {seeds} seed(s), mean ± standard deviation over them."
    return "\n".join([f"# {results['title']}", "", made, "", *rows, *remarks(results)]) + "\n"


def remarks(results: dict[str, Any]) -> list[str]:
    """Why rows are empty."""
    said = [f"{name}: {row['failures'][0]}" for name, row in results["rows"].items() if row["failures"]]
    return ["", *said] if said else []
