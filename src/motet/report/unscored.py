"""Clients that have test rows and no score of the metric, and why; and whether rows count by weights.

An AUC needs rows of two classes, a concordance pairs of times. Such clients are in no mean, and are named.
Knows runs as they are read. Does not know how tables are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report.gains import unit_of
from motet.report.read import ReportedRun, may_lack, natural
from motet.report.terminal import over_clients

if TYPE_CHECKING:
    import pandas as pd

WEIGHTED = "Scores are weighted: a test row counts by its weight (data.weight), and every client the same."


def unscored(run: ReportedRun) -> list[str]:
    """The clients of a run whose model has no score of the metric for their test rows."""
    scores = run.of("personal")
    names = scores.index[scores.isna()] if may_lack(run.metric) else []
    return sorted(map(str, names), key=natural)


def scored(run: ReportedRun) -> set[str]:
    """The clients of a run that its means are over."""
    return set(map(str, run.of("personal").index)) - set(unscored(run))


def scored_units(group: Sequence[ReportedRun]) -> tuple[set[Any], set[Any]]:
    """The clients that have a score in some of a method's runs, and those that have none in any."""
    there = {unit_of(run, str(c)) for run in group for c in run.of("personal").index}
    found = {unit_of(run, c) for run in group for c in scored(run)}
    return found, there - found


def remark(runs: Sequence[ReportedRun]) -> list[str]:
    """What a table of these runs must say of clients without a score, and of weights."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in (run for run in runs if not run.trouble):
        groups.setdefault(run.label, []).append(run)
    found = [WEIGHTED] if any(run.weighted for run in runs) else []
    most = max(groups.values(), key=lambda group: len(scored_units(group)[1]), default=[])
    having, without = scored_units(most)
    if not without:
        return found
    who = over_clients(len(having) + len(without), len(without), most[0].metric)
    if (splits := len({run.split for run in most})) > 1 and not most[0].natural:
        who += f", counted in {splits} splits"
    elif (fewest := min(len(scored(run)) for run in most)) < len(having):
        who += f"; in a single run over {fewest:,} or more"
    return [*found, f"Means are over {who}."]


def with_unscored(frame: pd.DataFrame, runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """The table of clients (split, client, train, scores), with a row for each client that has no score in any run."""
    import pandas as pd

    drawn, train = frame.attrs["drawn"], dict[tuple[int, str], float]()
    for run in [run for run in runs if not run.trouble]:
        held = run.clients.set_index("client")["train"]
        train |= {(run.split if drawn else 0, c): float(held[c]) for c in unscored(run)}
    there = set(zip(frame["split"], frame["client"], strict=True))
    missing = sorted(train.keys() - there, key=lambda unit: (unit[0], natural(unit[1])))
    if not missing:
        return frame
    rows = {
        "split": [s for s, _ in missing],
        "client": [c for _, c in missing],
        "train": map(train.get, missing),
    }
    names = [f"{c}, split {s}" if drawn else c for s, c in missing]
    found = pd.concat([frame, pd.DataFrame(rows, index=names)])
    found.attrs = frame.attrs
    return found
