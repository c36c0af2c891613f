"""What it costs the others that a client was forgotten: their scores with it and without it, client by client.

Both runs have the same recipe but for that client, so their test rows are the same and are compared in pairs. What
the runs differ in besides is chance of training too: one pair of runs says little of a client with few rows.
Knows runs as they are read, and a table that a run keeps as a fact. Does not know how runs are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from motet.report.certainty import LEVEL
from motet.report.client_outcomes import OUTCOMES, gain_intervals, outcomes
from motet.report.gains import Pair, apart, gain_frame, mean_gain, unit_of
from motet.report.read import ReportedRun, natural
from motet.report.terminal import gain, named, plain, score, short, unit, with_interval
from motet.text import aligned, printable

SIDES = ("personal", "global")
_LONGEST = 24  # letters of a client's name in the table


def price(before: ReportedRun, after: ReportedRun) -> dict[str, Any]:
    """The scores of all clients that both runs trained with, and what changed: plain data, to be kept. Both are
    measured by the metric of the run with the client; without it, the run may have chosen another one."""
    other = f"the run without it goes by {after.metric}" if after.metric != before.metric else ""
    after = by_metric(after, before)
    pair = Pair(after, before)
    frame, called, ends = gain_frame([pair]), outcomes([pair]), gain_intervals([pair])
    rows = [
        {
            "client": str(r["client"]), "test": int(r["n"]), "before": float(r["other"]), "after": float(r["own"]),
            "gain": float(r["gain"]), "low": plain(ends[unit_of(after, r["client"])][0]),
            "high": plain(ends[unit_of(after, r["client"])][1]), "outcome": called[unit_of(after, r["client"])],
        }
        for r in frame.to_dict("records")
    ]  # fmt: skip
    mean = mean_gain(frame)
    return {
        "metric": after.metric, "better": after.better, "note": other,
        "mean": {"gain": plain(mean.mean), "low": plain(mean.low), "high": plain(mean.high)},
        "global": global_gain(before, after), "clients": sorted(rows, key=lambda r: natural(r["client"])),
    }  # fmt: skip


def by_metric(run: ReportedRun, like: ReportedRun) -> ReportedRun:
    """A run with the scores of another run's metric."""
    if run.metric == like.metric:
        return run
    facts = run.facts | {"metric": like.metric, "better": like.better}
    score = run.test[like.metric] if like.metric in run.test else float("nan")
    return replace(run, facts=facts, test=run.test.assign(score=score))


def global_gain(before: ReportedRun, after: ReportedRun) -> float | None:
    """Of the one model for all, mean over the clients that both runs scored; None where there is none."""
    one, two = after.of("global").align(before.of("global"), join="inner")
    both = apart(one.to_numpy(), two.to_numpy())
    both = both[~np.isnan(both)]
    return float(both.mean() * after.better) if len(both) else None


# ---- for people ----


def price_text(client: str, found: Mapping[str, Any]) -> str:
    """The table, then what it comes to."""
    metric, rows = str(found["metric"]), found["clients"]
    if not rows:
        return "no other client has test scores in both runs: what it costs them is not known"
    head = ("client", "test rows", "with it", "without", f"change ({100 * LEVEL:.0f} %)", "")
    lines = aligned([head, *(_cells(r, metric) for r in rows)], right=[1, 2, 3])
    title = f"what it costs the others that {printable(client, 60)} is gone ({unit(metric)}, own test rows)"
    return "\n".join([title, "", *lines, "", *sentences(found)])


def _cells(row: Mapping[str, Any], metric: str) -> tuple[str, ...]:
    name, change = short(printable(row["client"]), _LONGEST), in_words(row, metric)
    mark = {"better": "better", "worse": "worse"}.get(row["outcome"], "")
    return name, f"{row['test']:,}", score(row["before"], metric), score(row["after"], metric), change, mark


def in_words(row: Mapping[str, Any], metric: str) -> str:
    """A change with its interval. Where all is zero nothing changed, and there is nothing to be unsure of."""
    if row["gain"] == row["low"] == row["high"] == 0:
        return "none"
    low, high = (float("nan") if row[k] is None else row[k] for k in ("low", "high"))
    return with_interval(row["gain"], low, high, metric)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What the table comes to."""
    metric, mean, rows = str(found["metric"]), found["mean"], found["clients"]
    if not rows:
        return []
    many = Counter(r["outcome"] for r in rows)
    counted = ", ".join(f"{many[o]} {o}" for o in OUTCOMES if many[o])
    said = f"{in_words(mean, metric)}; by their own test rows {counted}"
    if all(r["gain"] == 0 for r in rows):
        said = "none, because no other client's score changed"
    lines = [f"mean change of the others: {said}"]
    if any(r["gain"] for r in rows) or found["global"]:
        lines.append(
            f"a positive change is better: {'more' if found['better'] > 0 else 'less'} {named(metric)}"
        )
    lines += [f"scores are {named(metric)}, as with it; {found['note']}"] if found.get("note") else []
    if found["global"] is not None:
        lines.append(f"mean change of the global model: {gain(found['global'], metric)}")
    return lines


def forgotten(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """For a page: who was forgotten in which run, and what that costs the others; nothing for most runs."""
    found = [(run, run.facts.get("forgot")) for run in runs]
    return [
        {
            "label": run.label, "seed": run.seed, "client": fact["client"], "metric": fact["price"]["metric"],
            "rows": [r | {"change": in_words(r, fact["price"]["metric"])} for r in fact["price"]["clients"]],
            "sentences": sentences(fact["price"]),
        }
        for run, fact in found
        if fact and fact.get("price")
    ]  # fmt: skip
