"""Our numbers and a paper's in one table, as text or Markdown.

Knows plain data: rows with values by seed, and what a paper prints. Does not run anything.
"""

from __future__ import annotations

from math import isnan
from statistics import mean, pstdev
from typing import Any

from motet.text import aligned

QUICK = (
    "Scale quick: it shows that everything runs. It is too small to compare with the paper; see --scale desk."
)


def cells(results: dict[str, Any]) -> list[list[str]]:
    """A head and a row for each method: ours, mean ± sd over seeds, and the paper's."""
    head = ["method"] + [text for c in results["columns"] for text in (c, "paper")] + ["minutes"]
    return [head] + [[name, *_numbers(results, row)] for name, row in results["rows"].items()]


def _numbers(results: dict[str, Any], row: dict[str, Any]) -> list[str]:
    found, units = [], results["units"]
    for c in results["columns"]:
        found += [ours(row["values"].get(c, []), units[c]), theirs(row["paper"].get(c), units[c])]
    return [*found, f"{row['seconds'] / 60:.1f}" if "seconds" in row else "–"]


def ours(values: list[float], unit: str = "percent") -> str:
    """
    A seed whose number is nan has none: it is left out, and the others are counted.

    >>> ours([0.9, 0.92]), ours([0.5]), ours([]), ours([23.5, 23.7], "number")
    ('91.00 ± 1.00', '50.00', '–', '23.6000 ± 0.1000')
    >>> nan = float("nan")
    >>> ours([0.9, nan, 0.92]), ours([nan, nan])
    ('91.00 ± 1.00 (2 of 3)', '–')
    """
    known = [v for v in values if not isnan(v)]
    if not known:
        return "–"
    by, places = (100, 2) if unit == "percent" else (1, 4)
    spread = f" ± {by * pstdev(known):.{places}f}" if len(known) > 1 else ""
    some = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    return f"{by * mean(known):.{places}f}{spread}{some}"


def theirs(value: float | None, unit: str = "percent") -> str:
    """As the paper prints it: shares are in percent already."""
    return "/" if value is None else f"{value:.{2 if unit == 'percent' else 4}f}"


def as_text(results: dict[str, Any]) -> str:
    return "\n".join([results["title"], "", *aligned(cells(results)), *remarks(results)])


def as_markdown(results: dict[str, Any], command: str, commit: str) -> str:
    table = cells(results)
    rows = ["| " + " | ".join(row) + " |" for row in table]
    rows.insert(1, "| --- " * len(table[0]) + "|")
    seeds = max((len(v) for row in results["rows"].values() for v in row["values"].values()), default=0)
    made = f"`{command}`, commit {commit}; {seeds} seed(s), mean ± standard deviation over them."
    return "\n".join([f"# {results['title']}", "", made, "", *rows, *remarks(results)]) + "\n"


def remarks(results: dict[str, Any]) -> list[str]:
    """Why rows are empty, and what a small scale does not show."""
    said = [f"{name}: {row['failures'][0]}" for name, row in results["rows"].items() if row["failures"]]
    if results.get("scale") == "quick":
        said.append(QUICK)
    return ["", *said] if said else []
