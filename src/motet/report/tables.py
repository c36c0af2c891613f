"""What runs found, as tables: one run, methods side by side, client by client, round by round.

Knows how scores are averaged: over clients first, each client counting the same, then over seeds.
A run in trouble (failed, diverged, still running) counts in no average and is always shown.
Knows nothing of how runs are made, and nothing of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report.read import ALONE, UPPER_BOUND, ReportedRun, check_comparable, differing_clients, natural
from motet.report.terminal import plain

if TYPE_CHECKING:
    import pandas as pd

NOTHING = float("nan")
TIE = 1e-9  # scores closer than this are the same score


# ---- one run ----


def summary(run: ReportedRun) -> dict[str, Any]:
    """One run in numbers: both sides, the worst tenth, unseen clients, time and bytes; None does not apply.

    The standard deviation is that of the population of clients. Bytes are per client and round.
    """
    facts = run.facts
    found = {
        "label": run.label, "method": run.method, "seed": run.seed, "metric": run.metric,
        "better": run.better, "trouble": run.trouble, "clients": len(run.of("personal")),
        "unseen": int((run.clients["seen"] == 0).sum()), "reported": facts.get("reported"),
        "rounds": len(run.rounds), **_side(run, "personal"), **_side(run, "global"), **_side(run, "after_training"),
        "arrival": _mean(run.of("arrival", seen=False)), "visit": _mean(run.of("visit", seen=False)),
        "unseen_global": _mean(run.of("global", seen=False)),
        "server_test": (facts.get("server_test") or {}).get(run.metric),
        "seconds": float(facts.get("seconds") or run.rounds["seconds"].sum()), **_traffic(run),
        "notes": list(run.notes), "metrics": _metrics(run),
    }  # fmt: skip
    return {key: plain(value) for key, value in found.items()}


def _metrics(run: ReportedRun) -> dict[str, float]:
    """What the method said of the last round that it said something of."""
    last = run.metrics.sort_values("round").groupby("name")["value"].last()
    return {str(name): float(value) for name, value in last.items()}


def _traffic(run: ReportedRun) -> dict[str, float]:
    """Bytes per client and round, and in all; the upper bound sends rows, not models, and has none."""
    if run.method == UPPER_BOUND:
        return dict.fromkeys(("up", "down", "total_up", "total_down"), NOTHING)
    asked = int(run.rounds["cohort"].sum())
    total = {way: int(run.rounds[way].sum()) for way in ("up", "down")}
    each = {way: many / asked if asked else 0.0 for way, many in total.items()}
    return each | {f"total_{way}": float(many) for way, many in total.items()}


def _side(run: ReportedRun, side: str) -> dict[str, float]:
    scores = run.of(side)
    spread = math.sqrt(_mean((scores - scores.mean()) ** 2))  # of the population
    return {side: _mean(scores), f"{side}_sd": spread, f"{side}_worst": worst_tenth(scores, run.better)}


def _mean(scores: pd.Series[float]) -> float:
    return float(scores.mean(skipna=False)) if len(scores) else NOTHING


def worst_tenth(scores: pd.Series[float], better: int) -> float:
    """Mean of the worst 10 % of the clients, rounded up to whole clients."""
    many = -(-len(scores) // 10)
    worst = (scores * better).sort_values()[:many] * better
    return _mean(worst) if not scores.isna().any() else NOTHING


# ---- methods side by side ----


def comparison(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row for each method, best personal mean first; the upper bound last, and in no competition.

    Scores are means over seeds of means over clients. `sd` is over clients, averaged over seeds; `seed_sd`
    (of a sample) is there with several seeds. Gains pair each client with itself on the same seed, positive
    is better. `best_for` shares a client out equally among tied methods; `best_or_tied` counts it for each.
    """
    import pandas as pd

    check_comparable(runs)
    paired, clients = _paired(runs), client_scores(runs)
    groups = _groups(runs)
    rows = [
        _row(group) | _gains(label, runs, paired) | _wins(label, clients) for label, group in groups.items()
    ]
    frame = pd.DataFrame(rows)
    if not any(len(_sound(group)) > 1 for group in groups.values()):
        frame = frame.drop(columns="seed_sd")
    better = runs[0].better
    order = sorted(range(len(frame)), key=lambda i: _rank(rows[i], better))
    frame = frame.iloc[order].reset_index(drop=True)
    frame.attrs = {
        "metric": runs[0].metric, "better": better, "data": runs[0].facts.get("data"),
        "seeds": sorted({run.seed for run in runs}), "warnings": _warnings(runs, clients),
    }  # fmt: skip
    return frame


def _groups(runs: Sequence[ReportedRun]) -> dict[str, list[ReportedRun]]:
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _sound(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if not run.trouble]


def _rank(row: dict[str, Any], better: int) -> tuple[Any, ...]:
    missing = math.isnan(row["personal"])
    return row["role"] != "", missing, 0.0 if missing else -better * row["personal"], natural(row["method"])


def _row(group: Sequence[ReportedRun]) -> dict[str, Any]:
    """One method: the mean over seeds of what its sound runs found."""
    import pandas as pd

    blank = dict.fromkeys(summary(group[0]), NOTHING)
    found = pd.DataFrame([summary(run) for run in _sound(group)] or [blank])
    names = {
        "personal": "personal", "sd": "personal_sd", "worst": "personal_worst", "global": "global",
        "after_training": "after_training",
        "unseen": "unseen", "arrival": "arrival", "visit": "visit", "unseen_global": "unseen_global",
        "server_test": "server_test", "seconds": "seconds", "rounds": "rounds",
    }  # fmt: skip
    numbers = {name: float(found[key].astype(float).mean(skipna=False)) for name, key in names.items()}
    kib = {f"kib_{way}": float(found[way].astype(float).mean()) / 1024 for way in ("up", "down")}
    troubled = [run for run in group if run.trouble]
    return {
        "method": group[0].label,
        "role": "upper bound" if group[0].method == UPPER_BOUND else "",
        "runs": len(group), "failed": sum(run.failed for run in group),
        "trouble": "; ".join(f"seed {run.seed}: {run.trouble}" for run in troubled),
        "clients": max(len(run.of("personal")) for run in group),
        **numbers, "seed_sd": float(found["personal"].astype(float).std(ddof=1)), **kib,
    }  # fmt: skip


def _paired(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """label, method, seed, client, score: personal test scores of clients that took part, of sound runs."""
    import pandas as pd

    parts = [
        run.of("personal")
        .rename("score")
        .reset_index()
        .assign(label=run.label, method=run.method, seed=run.seed)
        for run in _sound(runs)
    ]
    empty = pd.DataFrame(columns=["client", "score", "label", "method", "seed"])
    return pd.concat(parts, ignore_index=True) if parts else empty


def _gains(label: str, runs: Sequence[ReportedRun], paired: pd.DataFrame) -> dict[str, Any]:
    """What each client gains over training alone and over FedAvg, on average, and how many gain."""
    row: dict[str, Any] = {}
    for rival in (ALONE, "fedavg"):
        gain = gain_over(rival, label, paired, runs[0].better)
        each = gain.groupby("client").mean()
        row[f"gain_{rival}"] = float(gain.groupby("seed").mean().mean()) if len(gain) else NOTHING
        row[f"gainers_{rival}"], row[f"pairs_{rival}"] = int((each > TIE).sum()), len(each)
    return row


def gain_over(rival: str, label: str, paired: pd.DataFrame, better: int) -> pd.Series[float]:
    """Per (seed, client), how much better `label` is than the method `rival`; empty for itself."""
    theirs = paired[paired["method"] == rival]
    theirs = theirs[theirs["label"] == theirs["label"].min()]  # of several rivals of that name, the first
    own = paired[(paired["label"] == label) & (paired["method"] != rival)]
    both = own.merge(theirs, on=["seed", "client"], suffixes=("", "_rival")).set_index(["seed", "client"])
    return (both["score"] - both["score_rival"]).astype(float) * better


def _wins(label: str, clients: pd.DataFrame) -> dict[str, float]:
    winners = clients["winners"]
    shares = [1 / len(w) if label in w else 0.0 for w in winners]
    competes = label in clients.attrs["rivals"] and len(clients.attrs["rivals"]) > 1
    return {
        "best_for": sum(shares) if competes else NOTHING,
        "best_or_tied": float(sum(s > 0 for s in shares)) if competes else NOTHING,
    }


def _warnings(runs: Sequence[ReportedRun], clients: pd.DataFrame) -> list[str]:
    found = []
    if seeds := differing_clients(runs):
        named = ", ".join(map(str, seeds))
        found.append(f"The runs with seed {named} do not have the same clients: gains compare unlike data.")
    used, every = clients.attrs["seeds"], {run.seed for run in runs}
    if used and set(used) != every:
        named = ", ".join(map(str, used))
        found.append(f"Not every method has every seed: clients are compared on seed {named} only.")
    if not used and any(not run.trouble for run in runs):
        found.append("No seed was run by every method: part of the differences is between seeds.")
    return found + _notes(runs)


def _notes(runs: Sequence[ReportedRun]) -> list[str]:
    """What runs say of themselves: once where all say it, else with their names."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for note in run.notes:
            said.setdefault(note, []).append(f"{run.label}, seed {run.seed}")
    return [note if len(who) == len(runs) else f"{'; '.join(who)}: {note}" for note, who in said.items()]


# ---- client by client ----


def by_client(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """client, train, a column of personal test scores for each method (mean over seeds), and the best method.

    Methods that tie are all named in `best`; the upper bound never is.
    """
    return client_scores(runs).drop(columns="winners").rename_axis("client").reset_index()


def client_scores(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """As `by_client`, with clients as the index, and `winners`: the names of all methods that are best.

    Methods are compared on the seeds that all of them have: attrs["seeds"].
    """
    check_comparable(runs)
    paired = _paired(runs).astype({"score": float})
    labels = sorted(paired["label"].unique(), key=natural)
    rivals = sorted(paired.loc[paired["method"] != UPPER_BOUND, "label"].unique(), key=natural)
    seeds = _common_seeds(paired, rivals)
    fair = paired[paired["seed"].isin(seeds)] if seeds else paired
    scores = fair.pivot_table("score", "client", "label", aggfunc="mean").reindex(columns=labels)
    frame = scores.reindex(sorted(scores.index, key=natural)).rename_axis(columns=None)
    frame.insert(0, "train", _train_rows(runs).reindex(frame.index))
    frame["winners"] = _winners(frame[rivals], runs[0].better)
    frame["best"] = [" = ".join(names) for names in frame["winners"]]
    alone = sorted(paired.loc[paired["method"] == ALONE, "label"])
    frame.attrs = {"labels": labels, "rivals": rivals, "seeds": seeds, "alone": alone[0] if alone else None}
    return frame


def _common_seeds(paired: pd.DataFrame, rivals: Sequence[str]) -> list[int]:
    seeds = [set(paired.loc[paired["label"] == label, "seed"]) for label in rivals]
    return sorted(int(s) for s in set.intersection(*seeds)) if seeds else []


def _train_rows(runs: Sequence[ReportedRun]) -> pd.Series[float]:
    import pandas as pd

    return pd.concat([run.clients.set_index("client")["train"] for run in runs]).groupby(level=0).mean()


def _winners(scores: pd.DataFrame, better: int) -> list[list[str]]:
    if not len(scores.columns):
        return [[] for _ in range(len(scores))]
    good = scores * better
    won = good.ge(good.max(axis="columns") - TIE, axis="index").to_numpy()
    return [[name for name, yes in zip(scores.columns, row, strict=True) if yes] for row in won]


# ---- round by round ----


def history(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """method, side, round, score, seeds: validation scores, mean over clients and then over seeds.

    Runs in trouble are in it too, as far as they came: their curves show what happened.
    """
    import pandas as pd

    check_comparable(runs)
    parts = [run.val.assign(method=run.label, seed=run.seed) for run in runs]
    rows = pd.concat(parts, ignore_index=True).groupby(["method", "side", "round"])["score"]
    return rows.agg(score=lambda s: s.mean(skipna=False), seeds="size").reset_index()
