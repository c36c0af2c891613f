"""The numbers behind the report's figures, and all test scores as one long frame.

A unit is a client: the same party in every split where clients are natural, else one client of one split.
Scores of a unit are averaged over seeds first. A run in trouble (failed, diverged, still running) is in no
average. Knows runs as they are read, and pandas. Does not know how figures are drawn.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report.read import ALONE, ReportedRun, natural
from motet.runs.store import METRICS, Store

if TYPE_CHECKING:
    import pandas as pd

TIE = 1e-9  # scores closer than this are the same score
LONG = ["split", "seed", "method", "label", "side", "client", "metric", "value", "n", "seen"]
SIDES = ("personal", "global")  # whose validation scores are curves
MOST_LABELS = 40  # labels in the figure of clients' rows


def split_of(run: ReportedRun) -> int:
    """The seed of the split; in runs of earlier versions it was the run's seed."""
    return int(run.facts.get("split", run.seed))


def sound(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if not run.trouble]


# ---- everything ----


def long(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """split, seed, method, label, side, client, metric, value, n, seen: test scores of the reported models.

    A row for each client, side and metric that has a value; `n` are the client's test rows, `seen` says
    whether it took part in training. Runs in trouble are left out.
    """
    import pandas as pd

    parts = [_long(run) for run in sound(runs)]
    return pd.concat(parts, ignore_index=True)[LONG] if parts else pd.DataFrame(columns=LONG)


def _long(run: ReportedRun) -> pd.DataFrame:
    store = Store(run.folder)
    try:
        scores = store.frame("scores")
    finally:
        store.close()
    rows = scores[(scores["part"] == "test") & (scores["n"] > 0)]
    rows = rows[(rows["round"] == run.facts.get("reported")) | (rows["side"] == "visit")]
    metrics = [m for m in METRICS if m in rows]
    found = rows.melt(["side", "client", "n"], metrics, "metric", "value").dropna(subset="value")
    seen = found["client"].map(run.clients.set_index("client")["seen"]).fillna(1).astype(bool)
    return found.assign(split=split_of(run), seed=run.seed, method=run.method, label=run.label, seen=seen)


# ---- round by round ----


def curves(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """label, side, round, score, low, high, runs: validation scores, mean over clients, then over runs.

    `low` and `high` are the lowest and the highest run. A method of which every run is in trouble has its
    curve too, as far as it came: it shows what happened.
    """
    import pandas as pd

    fine = {run.label for run in sound(runs)}
    some = [run for run in runs if not run.trouble or run.label not in fine]
    parts = [run.val[run.val["side"].isin(SIDES)].assign(label=run.label) for run in some]
    rows = pd.concat(parts, ignore_index=True)
    found = rows.groupby(["label", "side", "round"], sort=False)["score"]
    return found.agg(score=lambda s: s.mean(skipna=False), low="min", high="max", runs="size").reset_index()


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


def _paired(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """label, method, split, seed, client, unit, train, score, own_alone: a row for each run and client."""
    import pandas as pd

    several = len({split_of(run) for run in runs}) > 1
    parts = []
    for run in sound(runs):
        score = run.of("personal")
        redrawn = several and not run.facts.get("natural", False)
        part = pd.DataFrame({"client": score.index, "score": score.to_numpy()})
        part["own_alone"] = run.of("alone").reindex(score.index).to_numpy()
        part["train"] = run.clients.set_index("client")["train"].reindex(score.index).to_numpy()
        part["unit"] = [f"{c}, split {split_of(run)}" if redrawn else c for c in score.index]
        parts.append(part.assign(label=run.label, method=run.method, split=split_of(run), seed=run.seed))
    columns = ["client", "score", "own_alone", "train", "unit", "label", "method", "split", "seed"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def client_scores(runs: Sequence[ReportedRun], labels: Sequence[str]) -> pd.DataFrame:
    """Personal test scores, mean over seeds: units are the index, columns `train` and a column per label."""
    rows = _paired(runs).astype({"score": float, "train": float})
    scores = rows.pivot_table("score", "unit", "label", aggfunc="mean")
    scores = scores[[name for name in labels if name in scores]].rename_axis(columns=None)
    scores.insert(0, "train", rows.groupby("unit")["train"].mean())
    return scores.reindex(sorted(scores.index, key=natural))


def gains(runs: Sequence[ReportedRun], labels: Sequence[str]) -> pd.DataFrame:
    """label, unit, train, gain, change: what each unit gains over training alone, mean over seeds.

    Alone is the method's own kind trained alone where the run has it, else the first method `local` on the
    same split and seed. Positive is better. `change` is better, same or worse.
    """
    rows = _paired(runs)
    alone = rows[rows["method"] == ALONE]
    alone = alone[alone["label"] == alone["label"].min()]
    keys = ["split", "seed", "client"]
    both = rows[rows["method"] != ALONE].merge(alone[[*keys, "score"]], "left", keys, suffixes=("", "_local"))
    base = both["own_alone"].astype(float).fillna(both["score_local"].astype(float))
    both["gain"] = (both["score"].astype(float) - base) * runs[0].better
    found = both.dropna(subset="gain").groupby(["label", "unit"])[["train", "gain"]].mean().reset_index()
    found["change"] = [_change(value) for value in found["gain"]]
    place = {name: i for i, name in enumerate(labels)}
    return found.sort_values(
        ["label", "unit"], key=lambda c: c.map(place.get if c.name == "label" else natural)
    )


def mean_gains(found: pd.DataFrame, table: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Mean gain of each label over units, and its 95 % interval where the table of methods has one."""
    rows = {row["method"]: row for row in table.to_dict("records")}

    def end(label: Any, which: str) -> float:
        return float(rows[label].get(f"gain_local_{which}", float("nan")))

    return {
        str(label): (float(part["gain"].mean()), end(label, "low"), end(label, "high"))
        for label, part in found.groupby("label", sort=False)
    }


def _change(gain: float) -> str:
    return "same" if abs(gain) <= TIE else "better" if gain > 0 else "worse"


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
