"""Clients that have test rows and no score of the metric, and why; and whether rows count by weights.

An AUC needs rows of two classes, a concordance pairs of times. Such clients are in no mean, and are named.
Knows runs as they are read. Does not know how tables are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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


def remark(runs: Sequence[ReportedRun]) -> list[str]:
    """What a table of these runs must say of clients without a score, and of weights."""
    sound = [run for run in runs if not run.trouble]
    found = [WEIGHTED] if any(run.weighted for run in runs) else []
    most = max(sound, key=lambda run: len(unscored(run)), default=None)
    if most is None or not (without := unscored(most)):
        return found
    who = over_clients(len(most.of("personal")), len(without), most.metric)
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
