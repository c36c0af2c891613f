"""Who gains how much: runs paired with what they are compared with, client by client.

A unit is a client: its name where clients are the same parties in every split, else its name in one split.
A method is compared with its own kind trained alone: with the side `alone` of the same run where it has one,
else with the run of `local` that has the same network, data and training. Test scores are paired and never
choose: of several rows of `local`, the one with the best validation score counts.
Knows runs as they are read. Does not know how tables look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.report.certainty import LEVEL, Interval, interval, signed_rank
from motet.report.read import ALONE, CONSTANT, ReportedRun, settings_of

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-6  # of the larger score: what trainings differ by that add the same numbers in another order
Groups = Mapping[str, Sequence[ReportedRun]]  # sound runs of each row of a table
NO_NETWORK = ("stacking",)  # methods whose models are no networks: a network alone is not their kind


@dataclass(frozen=True)
class Pair:
    """A run, and the side of a run on the same split and seed that it is compared with."""

    run: ReportedRun
    against: ReportedRun
    side: str = "personal"


def unit_of(run: ReportedRun, client: str) -> Any:
    """What counts as one client in every statistic."""
    return client if run.natural else (run.split, client)


def pairs(group: Sequence[ReportedRun], rivals: Sequence[ReportedRun]) -> list[Pair]:
    """Each run with the rival on the same split and seed."""
    there = {(run.split, run.seed): run for run in rivals}
    return [Pair(run, there[key]) for run in group if (key := (run.split, run.seed)) in there]


def with_side(group: Sequence[ReportedRun], side: str) -> list[Pair]:
    """Each run with another side of itself, where it has one."""
    return [Pair(run, run, side) for run in group if len(run.of(side))]


def alone(group: Sequence[ReportedRun], groups: Groups) -> tuple[list[Pair], str]:
    """The runs of one row with their own kind alone, and what that is; `local` and no model have none."""
    if not group or group[0].method in (ALONE, CONSTANT):
        return [], ""
    if own := with_side(group, "alone"):
        return own, "its own model, trained alone"
    label = "" if group[0].method in NO_NETWORK else _best_alone(group[0], groups)
    return (pairs(group, groups[label]), f"{label}, {_net(group[0])}") if label else ([], "")


def _net(run: ReportedRun) -> str:
    return str(run.facts.get("net", "network"))


def _best_alone(run: ReportedRun, groups: Groups) -> str:
    """The label of `local` that fits this run; by validation score where several do."""
    known = {label: group[0] for label, group in groups.items() if group and group[0].method == ALONE}
    sections = (("net.", "data.", "train."), ("net.", "data."))  # the nearest kind first
    for some in sections:
        fits = [label for label, other in known.items() if _kind(run, some) == _kind(other, some)]
        if fits:
            return max(fits, key=lambda label: validation(groups[label]) * run.better)
    return ""


def _kind(run: ReportedRun, sections: tuple[str, ...]) -> dict[str, Any]:
    settings = {k: v for k, v in settings_of(run).items() if k.startswith(sections)}
    return settings | {"net": run.facts.get("net")}


def validation(group: Sequence[ReportedRun]) -> float:
    """The mean over runs of the validation score; the worst there is, where it is not known."""
    found = [run.validation for run in group]
    known = bool(found) and not any(math.isnan(v) for v in found)
    return sum(found) / len(found) if known else -math.inf * (group[0].better if group else 1)


# ---- numbers ----


def gain_frame(some: Sequence[Pair]) -> pd.DataFrame:
    """split, seed, client, unit, n, own, other, gain: test scores that both have; a positive gain is better, and
    scores that differ by rounding are equal."""
    import pandas as pd

    parts = [
        pd.DataFrame({"split": [], "seed": [], "client": [], "unit": [], "n": [], "own": [], "other": []})
    ]
    for pair in some:
        part = pd.concat(
            {"own": pair.run.of("personal"), "other": pair.against.of(pair.side)}, axis=1
        ).dropna()
        rows = pair.run.test[pair.run.test["side"] == "personal"].set_index("client")["n"]
        part = part.assign(n=rows.reindex(part.index)).rename_axis("client").reset_index()
        units = pd.Series([unit_of(pair.run, c) for c in part["client"]], index=part.index, dtype=object)
        parts.append(part.assign(split=pair.run.split, seed=pair.run.seed, unit=units))
    frame = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    better = some[0].run.better if some else 1
    own, other = (frame[side].to_numpy(dtype=float) for side in ("own", "other"))
    return frame.assign(gain=apart(own, other) * better)


def apart(own: Any, other: Any) -> Any:
    """By how much scores differ; by nothing where it is rounding.

    >>> apart(np.array([7.0, 7.0]), np.array([7.0 + 1e-12, 6.0])).tolist()
    [0.0, 1.0]
    """
    found = own - other
    return np.where(np.abs(found) <= ROUNDING * np.maximum(np.abs(own), np.abs(other)), 0.0, found)


def mean_gain(frame: pd.DataFrame, level: float = LEVEL) -> Interval:
    """Over units, with its interval; a training is a split, or a seed where there is one split."""
    by = "split" if frame["split"].nunique() > 1 else "seed"
    return interval(frame["gain"].to_list(), frame["unit"].to_list(), frame[by].to_list(), level)


def chance(frame: pd.DataFrame) -> float:
    """p of the hypothesis that units gain as often and as much as they lose."""
    return signed_rank(frame.groupby("unit", sort=False)["gain"].mean().to_list())
