"""What a comparison means, in sentences: who is served best, who is not, and how sure that is.

Every sentence is computed from the tables and claims no more than they hold. Knows no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report.read import ALONE, UPPER_BOUND, ReportedRun
from motet.report.tables import TIE, summary
from motet.report.terminal import gain, number, score

if TYPE_CHECKING:
    import pandas as pd


def finding(table: pd.DataFrame, clients: pd.DataFrame) -> str:
    """The whole in one sentence."""
    rivals = _rivals(table)
    if not rivals:
        return "No method has test scores yet: every run failed or is still running."
    best, metric = rivals[0], table.attrs["metric"]
    if len(rivals) == 1:
        return _alone_in_the_table(best, metric)
    mean, error = _lead(rivals, clients, table)  # a lead without an error is not to be relied on
    close = "" if mean > 2 * error else f", too close to {rivals[1]['method']} to tell the two apart"
    parts = [
        f"{best['method']} has the best mean {metric} of the clients' own models"
        f" ({said(best['personal'], metric)}){close}",
        _serves_most(rivals, len(clients)),
    ]
    if (alone := better_alone(clients, table)) is not None:
        parts.append(_better_alone(alone, len(clients)))
    return "; ".join(parts) + "."


def said(value: float, metric: str) -> str:
    return f"{score(value, metric)} %" if metric == "accuracy" else score(value, metric)


def _rivals(table: pd.DataFrame) -> list[Any]:
    return [r for r in table.to_dict("records") if not r["role"] and not math.isnan(r["personal"])]


def _serves_most(rivals: Sequence[Any], many: int) -> str:
    most = max(r["best_for"] for r in rivals)
    winners = [r for r in rivals if r["best_for"] > most - TIE]
    ties = ", ties shared out" if any(r["best_for"] != r["best_or_tied"] for r in winners) else ""
    share = f"{number(most)} of {many:,}"
    if len(winners) > 1:
        return f"{' and '.join(r['method'] for r in winners)} serve the most clients best, {share} each{ties}"
    who = "it" if winners[0] is rivals[0] else winners[0]["method"]
    return f"{who} serves the most clients best, {share}{ties}"


def _alone_in_the_table(row: Any, metric: str) -> str:
    return (
        f"Clients' own models of {row['method']} reach a mean {metric} of {said(row['personal'], metric)}"
        f" (sd over clients {score(row['sd'], metric)}, worst tenth {said(row['worst'], metric)})."
    )


def better_alone(clients: pd.DataFrame, table: pd.DataFrame) -> list[str] | None:
    """Clients whose own training beats every other method; None where that cannot be said."""
    alone = clients.attrs["alone"]
    others = [name for name in clients.attrs["rivals"] if name != alone]
    if alone is None or not others:
        return None
    better = table.attrs["better"]
    ahead = clients[alone] * better > (clients[others] * better).max(axis="columns") + TIE
    return [str(c) for c in clients.index[ahead]]


def _better_alone(alone: Sequence[str], many: int) -> str:
    if not alone:
        return "every client has a federated method that serves it at least as well as training alone"
    are = "1 client is" if len(alone) == 1 else f"{len(alone):,} of {many:,} clients are"
    return f"{are} better off training alone than with any federated method here"


# ---- what else there is to say ----


def remarks(runs: Sequence[ReportedRun], table: pd.DataFrame, clients: pd.DataFrame) -> list[str]:
    """Sentences that follow the finding: margins, chance, bounds, and what is missing."""
    rivals = _rivals(table)
    metric = table.attrs["metric"]
    found = [
        _margin(rivals, clients, table),
        _over_alone(rivals, clients, metric),
        _bound(table, rivals, metric),
    ]
    found += [_both_sides(runs, metric), _worst(rivals, table), _seeds(table), _no_reference(rivals, clients)]
    return [text for text in found if text]


def _lead(rivals: Sequence[Any], clients: pd.DataFrame, table: pd.DataFrame) -> tuple[float, float]:
    """The lead of the first over the second: mean and standard error of paired differences over clients."""
    first, second = rivals[0]["method"], rivals[1]["method"]
    ahead = ((clients[first] - clients[second]) * table.attrs["better"]).dropna()
    error = float(ahead.std(ddof=1)) / math.sqrt(len(ahead)) if len(ahead) > 1 else float("nan")
    return float(ahead.mean()), error


def _margin(rivals: Sequence[Any], clients: pd.DataFrame, table: pd.DataFrame) -> str:
    if len(rivals) < 2:
        return ""
    metric, (mean, error) = table.attrs["metric"], _lead(rivals, clients, table)
    small = f"{100 * error if metric == 'accuracy' else error:.2g}"
    return (
        f"The lead over the second, {rivals[1]['method']}, is {gain(mean, metric)}{_points(metric)}"
        f" (standard error over clients: {small})."
    )


def _points(metric: str) -> str:
    return " points" if metric == "accuracy" else ""


def _over_alone(rivals: Sequence[Any], clients: pd.DataFrame, metric: str) -> str:
    best = next((r for r in rivals if r["method"] != clients.attrs["alone"]), None)
    if best is None or math.isnan(best["gain_local"]):
        return ""
    change = f"{gain(best['gain_local'], metric)}{_points(metric)} on average (positive is better)"
    pays = "On average, federating does not pay here; " if best["gain_local"] <= 0 else ""
    who = f"{best['gainers_local']:,} of {best['pairs_local']:,} clients gain"
    return f"Against training alone, {best['method']} changes a client's {metric} by {change}. {pays}{who}."


def _bound(table: pd.DataFrame, rivals: Sequence[Any], metric: str) -> str:
    bounds = [r for r in table.to_dict("records") if r["role"] and not math.isnan(r["personal"])]
    if not bounds or not rivals:
        return ""
    bound = said(bounds[0]["personal"], metric)
    ahead = (rivals[0]["personal"] - bounds[0]["personal"]) * table.attrs["better"] > TIE
    note = "; personal models do better than one model for all" if ahead else ""
    return f"With all rows in one place ({UPPER_BOUND}) the mean is {bound}{note}."


def _both_sides(runs: Sequence[ReportedRun], metric: str) -> str:
    """Of a single run: personal against global."""
    if len(runs) != 1 or runs[0].trouble or runs[0].method == UPPER_BOUND:
        return ""
    run, found = runs[0], summary(runs[0])
    each = ((run.of("personal") - run.of("global")) * run.better).dropna()
    if not len(each):
        return ""
    up, down = int((each > TIE).sum()), int((each < -TIE).sum())
    return (
        f"The global model reaches {said(found['global'], metric)}; {up:,} of {len(each):,} clients"
        f" do better with their own model, {down:,} do worse."
    )


def _worst(rivals: Sequence[Any], table: pd.DataFrame) -> str:
    """Where the best mean and the best worst tenth are of different methods, that is a choice to make."""
    if len(rivals) < 2:
        return ""
    better, metric = table.attrs["better"], table.attrs["metric"]
    kind = max(rivals, key=lambda r: better * r["worst"])
    if better * (kind["worst"] - rivals[0]["worst"]) <= TIE:
        return ""
    return (
        f"For the worst-off tenth of the clients {kind['method']} is best: {said(kind['worst'], metric)},"
        f" where {rivals[0]['method']} has {said(rivals[0]['worst'], metric)}."
    )


def _seeds(table: pd.DataFrame) -> str:
    if len(table.attrs["seeds"]) > 1:
        return ""
    what = "order close methods otherwise" if len(table) > 1 else "give somewhat other numbers"
    return f"There is one seed ({table.attrs['seeds'][0]}): another one may {what}."


def _no_reference(rivals: Sequence[Any], clients: pd.DataFrame) -> str:
    if not rivals or clients.attrs["alone"]:
        return ""
    return f"No run of {ALONE} is in this report, so it cannot say whether federating pays."
