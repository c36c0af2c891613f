"""What the runs on one data set found, method by method: scores by seed, gains with intervals, costs.

Gains are over training alone and over FedAvg, client by client on the same split and seed. Knows runs as reports read
them. Does not know how they are made, nor how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from motet.report.certainty import together
from motet.report.gains import Pair, alone, gain_frame, mean_gain, pairs
from motet.report.read import ALONE, POOLED, ReportedRun, read
from motet.report.tables import summary
from motet.report.terminal import plain
from motet.runs.jobs import Outcome

Standing = dict[str, Any]


def standing_of(
    name: str,
    by_method: Mapping[str, Sequence[Outcome]],
    tuned: Mapping[str, tuple[str, int]],
    unfit: Mapping[str, str],
) -> Standing:
    """Plain data of one data set. A method none of whose runs is sound counts as one that does not apply."""
    groups = {m: sound([o.folder for o in some if o.held and o.folder]) for m, some in by_method.items()}
    failed = {m: [o.failure for o in some if o.failure] for m, some in by_method.items()}
    first = next(g[0] for g in groups.values() if g)
    held = sum(bool(g) and m not in (ALONE, POOLED) for m, g in groups.items())
    unfit = dict(unfit) | {
        m: (failed[m] or ["diverged"])[0].split("\n")[0] for m, g in groups.items() if not g
    }
    methods = {
        m: one_method(group, groups, together(held))
        | {"failures": failed[m], "chosen": tuned.get(m, ("", 1))[0], "tried": tuned.get(m, ("", 1))[1]}
        for m, group in groups.items()
        if group
    }
    return {
        "name": name, "metric": first.metric, "better": first.better, "clients": len(first.of("personal")),
        "rows": int(first.clients[["train", "val", "test"]].to_numpy().sum()), "methods": methods, "unfit": unfit,
    }  # fmt: skip


def sound(folders: Sequence[Path]) -> list[ReportedRun]:
    return [run for run in read(folders) if not run.trouble] if folders else []


def one_method(
    group: Sequence[ReportedRun], groups: Mapping[str, Sequence[ReportedRun]], level: float
) -> Standing:
    """Scores by seed, gains, and what a run costs: seconds, and kilobytes of a client in all rounds."""
    found = [summary(run) for run in group]
    clients = found[0]["clients"]
    against = {"alone": alone(group, groups)[0], "fedavg": pairs(group, groups.get("fedavg", []))}
    if group[0].method == "fedavg":
        del against["fedavg"]
    sent = [(f["total_up"], f["total_down"]) for f in found if f["total_up"] is not None]
    return {
        "scores": [plain(f["personal"]) for f in found],
        "validation": plain(sum(run.validation for run in group) / len(group)),
        "seconds": sum(f["seconds"] for f in found) / len(found),
        "kilobytes": sum(up + down for up, down in sent) / len(sent) / clients / 1000 if sent else None,
        "alone": gains(against["alone"], level),
        "fedavg": gains(against.get("fedavg", []), level),
    }


def gains(some: Sequence[Pair], level: float) -> Standing:
    """The mean gain of clients with its 95 % interval; `sure` if one that holds for all methods at once is on one side
    of zero."""
    if not some:
        return dict.fromkeys(("mean", "low", "high", "sure"))
    frame = gain_frame(some)
    usual, wide = mean_gain(frame), mean_gain(frame, level)
    return {
        "mean": plain(usual.mean), "low": plain(usual.low), "high": plain(usual.high),
        "sure": bool(wide.above or wide.below),
    }  # fmt: skip
