"""The numbers behind the report's figures.

A unit is a client: the same party in every split where clients are natural, else one client of one split.
Scores of a unit are averaged over seeds first. A run in trouble (failed, diverged, still running) is in no
average. Knows runs as they are read, and pandas. Does not know how figures are drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report import tables
from motet.report.gains import alone, gain_frame, unit_of
from motet.report.read import ReportedRun, natural

if TYPE_CHECKING:
    import pandas as pd

SIDES = ("personal", "global")  # whose validation scores are curves
MOST_LABELS = 40  # labels in the figure of clients' rows


def sound(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if not run.trouble]


# ---- round by round ----


def curves(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """label, side, round, score, low, high, runs: validation scores, mean over clients, then over runs.

    `low` and `high` are the lowest and the highest run. A run that has ended keeps its last score, so that a curve
    does not jump; `runs` are those that went on. A method of which every run is in trouble has its
    curve too, as far as it came: it shows what happened.
    """
    import pandas as pd

    fine = {run.label for run in sound(runs)}
    some = [run for run in runs if not run.trouble or run.label not in fine]
    parts = [
        run.val[run.val["side"].isin(SIDES)].assign(label=run.label, run=i) for i, run in enumerate(some)
    ]
    rows = pd.concat(parts, ignore_index=True)
    columns = ["label", "side", "round", "score", "low", "high", "runs"]
    found = [
        _curve(part).assign(label=label, side=side)
        for (label, side), part in rows.groupby(["label", "side"], sort=False)
    ]
    # no run may have come to its first validation scores
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def _curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean, lowest and highest score of some runs, round by round."""
    import pandas as pd

    wide = rows.pivot(index="round", columns="run", values="score").sort_index()
    going = rows.pivot(index="round", columns="run", values="side").sort_index().bfill().notna()
    wide = wide.where(going, wide.ffill())
    each = {"score": wide.mean(axis=1), "low": wide.min(axis=1), "high": wide.max(axis=1)}
    return pd.DataFrame(each | {"runs": going.sum(axis=1)}).reset_index()


def constant(runs: Sequence[ReportedRun]) -> float | None:
    """The validation score of the constant prediction, mean over runs; None if it is in no store."""
    found = [float(v) for run in sound(runs) for v in run.val.loc[run.val["side"] == "constant", "score"]]
    return sum(found) / len(found) if found else None


def reported(runs: Sequence[ReportedRun]) -> dict[str, list[int]]:
    """The rounds whose models are reported, by label."""
    found: dict[str, list[int]] = {}
    for run in runs:
        if run.facts.get("reported") is not None:
            found.setdefault(run.label, []).append(int(run.facts["reported"]))
    return found


# ---- client by client ----


def client_scores(runs: Sequence[ReportedRun], labels: Sequence[str]) -> pd.DataFrame:
    """Personal test scores, mean over seeds: units are the index, columns `train` and a column per label."""
    frame = tables.client_scores(runs)
    return frame[["train", *(name for name in labels if name in frame)]]


def gains(runs: Sequence[ReportedRun], table: pd.DataFrame) -> pd.DataFrame:
    """label, unit, train, gain, change: what each unit gains over its own kind alone, mean over seeds.

    `change` is better, same, worse or not known, by the client's own test rows.
    """
    import pandas as pd

    groups: dict[str, list[ReportedRun]] = {}
    for run in sound(runs):
        groups.setdefault(run.label, []).append(run)
    drawn = len({run.split for run in runs}) > 1
    parts = [pd.DataFrame({"label": [], "unit": [], "train": [], "gain": [], "change": []})]
    for label in [name for name in table["method"] if name in groups]:
        frame = gain_frame(alone(groups[label], groups)[0])
        if len(frame):
            parts.append(_gains(label, frame, _train_rows(groups[label]), table, drawn))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def _gains(
    label: str, frame: pd.DataFrame, train: Mapping[Any, float], table: pd.DataFrame, drawn: bool
) -> pd.DataFrame:
    import pandas as pd

    called = table.attrs["outcomes"][label]
    rows = [
        (label, _unit_name(unit, drawn), train[unit], gain, called.get(unit, "not known"))
        for unit, gain in frame.groupby("unit", sort=False)["gain"].mean().items()
    ]
    found = pd.DataFrame(rows, columns=["label", "unit", "train", "gain", "change"])
    return found.sort_values("unit", key=lambda c: c.map(natural))


def _unit_name(unit: Any, drawn: bool) -> str:
    """As in the index of client_scores."""
    if not isinstance(unit, tuple):
        return str(unit)
    split, client = unit
    return f"{client}, split {split}" if drawn else str(client)


def _train_rows(group: Sequence[ReportedRun]) -> dict[Any, float]:
    """Training rows of each unit, the mean over runs."""
    held: dict[Any, list[float]] = {}
    for run in group:
        for client, many in run.clients.set_index("client")["train"].items():
            held.setdefault(unit_of(run, str(client)), []).append(float(many))
    return {unit: sum(some) / len(some) for unit, some in held.items()}


def mean_gains(found: pd.DataFrame, table: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Mean gain of each label over units, and its 95 % interval where the table of methods has one."""
    rows = {row["method"]: row for row in table.to_dict("records")}

    def end(label: Any, which: str) -> float:
        return float(rows[label].get(f"gain_local_{which}", float("nan")))

    return {
        str(label): (float(part["gain"].mean()), end(label, "low"), end(label, "high"))
        for label, part in found.groupby("label", sort=False)
    }


# ---- what clients hold ----


def client_rows(run: ReportedRun) -> pd.DataFrame:
    """client, seen, label, rows: training rows of each client, by label where labels are classes."""
    import pandas as pd

    classes = [str(c) for c in run.facts.get("classes") or []]
    named = {str(i): name for i, name in enumerate(classes)}  # the store has the classes' numbers
    found = []
    for row in run.clients.to_dict("records"):
        held = {named.get(k, k): int(n) for k, n in json.loads(row["labels"] or "{}").items()}
        for label, many in (held or {"": int(row["train"])}).items():
            found.append((str(row["client"]), bool(row["seen"]), label, many))
    return pd.DataFrame(found, columns=["client", "seen", "label", "rows"])


def most_frequent(rows: pd.DataFrame, classes: Sequence[str]) -> list[str]:
    """At most so many labels as a figure holds, in the order of the classes."""
    total = Counter[str]()
    for label, many in zip(rows["label"], rows["rows"], strict=True):
        total[label] += many
    places = {c: i for i, c in enumerate(classes)}
    kept = [label for label, _ in total.most_common(MOST_LABELS)]
    return sorted(kept, key=lambda k: (places.get(k, len(places)), natural(k)))
