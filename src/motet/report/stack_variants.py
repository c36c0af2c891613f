"""What stacking gains: each client's private model alone, its held-out and its pooled stack, side by side.

All of them are scored on the same rows. Validation scores stand beside test scores, because a variant is chosen by
validation rows (`method.variant=auto` does); test rows say what a choice is worth.
Knows scores of a run. Does not know how stacks are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report.contributions import (
    CENTRALITIES,
    by_client,
    contributions_of,
    how_lines,
    named_lines,
    policy_lines,
    published_lines,
    value_cells,
)
from motet.report.read import ReportedRun, natural
from motet.report.terminal import named
from motet.text import aligned, printable

if TYPE_CHECKING:
    import pandas as pd

SIDES = {
    "alone": "private model alone",
    "held-out": "held-out stack",
    "pooled": "pooled stack",
    "personal": "used (auto)",
}
NAMES = {
    "accuracy": "accuracy",
    "balanced": "balanced",
    "auc": "AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
}
_OF_CLASSES, _OF_NUMBERS = ("accuracy", "balanced", "auc"), ("rmse", "mae", "r2")


def variants_of(run: ReportedRun) -> dict[str, Any] | None:
    """Means over clients and each client's scores by variant; None for runs that compared none."""
    sides = list(dict.fromkeys(run.test["side"]))
    if not {"held-out", "pooled"} & {*sides}:
        return None
    seen = run.test[run.test["seen"] == 1]
    metrics = [m for m in (*_OF_CLASSES, *_OF_NUMBERS) if m in seen and seen[m].notna().any()]
    setting = str((run.facts.get("settings") or {}).get("method", {}).get("variant", ""))
    there = [s for s in SIDES if s in sides and (s != "personal" or setting == "auto")]
    return {
        "metric": run.metric,
        "metrics": metrics,
        "means": {s: {"validation": _validation(run, s)} | _means(seen, s, metrics) for s in there},
        "clients": {
            str(c): {s: _means(rows, s, metrics) for s in there}
            for c, rows in sorted(seen.groupby("client"), key=lambda p: natural(str(p[0])))
        },
    }


def _means(rows: pd.DataFrame, side: str, metrics: list[str]) -> dict[str, float | None]:
    """The mean over the clients that have a score: a client with one class among its rows has no AUC."""
    some = rows[rows["side"] == side][metrics].astype(float).mean()
    return {m: None if some[m] != some[m] else float(some[m]) for m in metrics}


def _validation(run: ReportedRun, side: str) -> float | None:
    """The mean over clients of the run's metric on validation rows."""
    rows = run.val[(run.val["side"] == side) & (run.val["round"] == run.facts.get("reported"))]["score"]
    return float(rows.iloc[0]) if len(rows) and rows.iloc[0] == rows.iloc[0] else None


def stacks(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """For a page: what stacking gains in each run that compared it, and who contributes what."""
    found = [(run, variants_of(run), contributions_of(run.facts)) for run in runs]
    return [
        {
            "label": run.label,
            "seed": run.seed,
            "heads": [NAMES[m] for m in (variants or {}).get("metrics", ())],
            "metric": named(run.metric),
            "rows": _cells(variants) if variants else [],
            "chosen_by": chosen_by(variants) if variants else "",
            "sides": [SIDES[s] for s in (variants or {}).get("means", ())],
            "by_client": _client_cells(variants) if variants else [],
            "clients": by_client(record) if record else [],
            "centralities": CENTRALITIES,
            "measured": value_cells(record) if record and record.get("values") else [],
            "lines": [
                *how_lines(record),
                *published_lines(record),
                *policy_lines(record),
                *named_lines(record),
            ]
            if record
            else [],
            "made_with": (record or {}).get("made_with", ""),
            "simulated": "arithmetic" in str((record or {}).get("published")),
        }
        for run, variants, record in found
        if variants or record
    ]


def _cells(found: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    return [
        (SIDES[s], [*(cell(m, row[m]) for m in found["metrics"]), cell(found["metric"], row["validation"])])
        for s, row in found["means"].items()
    ]


def _client_cells(found: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """A row for each client: every variant in every metric, the metrics of a variant beside each other."""
    return [
        (client, [cell(m, of[s][m]) for s in found["means"] for m in found["metrics"]])
        for client, of in found["clients"].items()
    ]


def variants_text(found: Mapping[str, Any] | None, *, clients: bool = False) -> list[str]:
    """A table for a terminal; with `clients`, each client's scores by the run's metric."""
    if not found:
        return []
    metrics, m = found["metrics"], found["metric"]
    head = ("mean of clients", *(NAMES[k] for k in metrics), "validation")
    rows = [(name, *cells) for name, cells in _cells(found)]
    lines = ["", *aligned([head, *rows], right=range(1, len(head)))]
    lines.append(f"on test rows; validation: {NAMES.get(m, m)} on validation rows,")
    lines.append("which alone may choose (method.variant=auto, by")
    lines.append(f"{chosen_by(found)})")
    if clients:
        lines += _by_client(found)
    return lines


def chosen_by(found: Mapping[str, Any]) -> str:
    return "balanced accuracy" if "accuracy" in found["metrics"] else "R²"


def _by_client(found: Mapping[str, Any]) -> list[str]:
    """One narrow table for each metric."""
    short = {"personal": "used"}
    sides, lines = list(found["means"]), list[str]()
    for metric in found["metrics"]:
        head = (f"test {NAMES[metric]}", *(short.get(s, s) for s in sides))
        rows = [
            (printable(c)[:20], *(cell(metric, of[s][metric]) for s in sides))
            for c, of in found["clients"].items()
        ]
        lines += ["", *aligned([head, *rows], right=range(1, len(head)))]
    return lines


def cell(metric: str, value: float | None) -> str:
    """
    >>> cell("auc", 0.91234), cell("rmse", 28.94), cell("auc", None), cell("accuracy", 0.6885)  # as 68.8 %
    ('.912', '28.9', '–', '.688')
    """
    if value is None:
        return "–"
    if metric in ("rmse", "mae"):
        return f"{value:.3g}"
    if metric in ("accuracy", "balanced"):
        value = float(f"{100 * value:.1f}") / 100  # as percentages are rounded elsewhere
    return f"{value:.3f}".replace("0.", ".", 1) if -1 < value < 1 else f"{value:.3f}"
