"""What runs found, as tables: one run, methods side by side, client by client, round by round, all in rows.

Knows how scores are averaged: over clients first, each client counting the same, then over seeds and splits.
Rows are ordered by validation scores; test scores choose nothing. A run in trouble (failed, diverged, still
running) counts in no average and is always shown. Knows nothing of how runs are made, and nothing of HTML.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from motet.report.certainty import holm, together
from motet.report.client_outcomes import OUTCOMES, outcomes
from motet.report.convergence import needs
from motet.report.gains import Groups, alone, chance, gain_frame, mean_gain, pairs, with_side
from motet.report.read import (
    ALONE,
    CONSTANT,
    POOLED,
    ReportedRun,
    check_comparable,
    differing_clients,
    may_lack,
    natural,
    rates_halved,
    settings_of,
)
from motet.report.row_intervals import gain_of_these
from motet.report.sample import sample_of
from motet.report.spent_privacy import spent
from motet.report.terminal import listed, named, plain, said_score
from motet.report.unscored import remark, scored_units, unscored, with_unscored
from motet.settings import AUTO

if TYPE_CHECKING:
    import pandas as pd

NOTHING = float("nan")
ROLES = {ALONE: "training alone", POOLED: "all rows in one place", CONSTANT: "constant"}
CURVES = ("personal", "global", "after_training")  # sides that are scored round by round
NUMBERS = ("rmse", "mae", "r2")
_TOO_LARGE = ("lr", "inner_lr", "lr_max", "lam", "mu")  # settings that may be so
_ALIKE = 1.25  # learning rates whose ratio is smaller train alike
SIGNIFICANT = 0.05  # p below which two methods are called different


# ---- one run ----


def summary(run: ReportedRun) -> dict[str, Any]:
    """One run in numbers: both sides, the worst tenth, unseen clients, time and bytes; None does not apply.
    The standard deviation is that of the population of clients. Bytes are per client and round."""
    facts = run.facts
    found = {
        "label": run.label, "method": run.method, "seed": run.seed, "split": run.split, "metric": run.metric,
        "better": run.better, "trouble": run.trouble, "clients": run.sites or len(run.of("personal")),
        "unscored": unscored(run), "weighted": run.weighted,
        "unseen": int((run.clients["seen"] == 0).sum()), "reported": facts.get("reported"),
        "rounds": len(run.rounds), **_side(run, "personal"), **_side(run, "global"), **_side(run, "after_training"),
        "validation": run.validation, "constant": _known(run, CONSTANT), "constant_name": constant_name(run),
        "needs": needs([run]), "device": facts.get("device", "cpu"), "alone": _known(run, "alone"),
        "arrival": _known(run, "arrival", seen=False), "visit": _known(run, "visit", seen=False),
        "unseen_global": _known(run, "global", seen=False),
        "server_test": (facts.get("server_test") or {}).get(facts.get("metric", "accuracy")),
        "seconds": float(facts.get("seconds") or run.rounds["seconds"].sum()), **_traffic(run),
        "groups": _group_sizes(run), "code": run.code, "notes": list(run.notes), "metrics": _metrics(run),
        "halved": rates_halved(facts), "below_constant": below_constant(run),
        "sample": sample_of(facts, run.test), **spent(facts),
    }  # fmt: skip
    return {key: plain(value) for key, value in found.items()}


def _known(run: ReportedRun, side: str, *, seen: bool = True) -> float:
    """The mean over the clients that have this score."""
    scores = run.of(side, seen=seen)
    return _mean(scores.dropna() if may_lack(run.metric) else scores)


def _metrics(run: ReportedRun) -> dict[str, float]:
    """What the method said of the last round that it said something of."""
    last = run.metrics.sort_values("round").groupby("name")["value"].last()
    return {str(name): float(value) for name, value in last.items()}


def _group_sizes(run: ReportedRun) -> list[int]:
    """How many clients each group has, largest first; empty for methods without groups."""
    found = Counter(((run.facts.get("record") or {}).get("groups") or {}).values())
    return sorted(found.values(), reverse=True)


def _traffic(run: ReportedRun) -> dict[str, float]:
    """Bytes per client and round, and in all; training on all rows in one place sends no models."""
    if run.method == POOLED:
        return dict.fromkeys(("up", "down", "total_up", "total_down", "rounds_sent"), NOTHING)
    cohort, ways = run.rounds["cohort"], ("up", "down")
    total = {f"total_{way}": float(run.rounds[way].sum()) for way in ways}
    each = {way: total[f"total_{way}"] / max(int(cohort.sum()), 1) for way in ways}
    return each | total | {"rounds_sent": float((cohort > 0).sum())}


def _side(run: ReportedRun, side: str) -> dict[str, float]:
    scores = run.of(side)
    scores = scores.dropna() if may_lack(run.metric) else scores
    own = math.sqrt(_mean((scores - scores.mean()) ** 2)), worst_tenth(scores, run.better)
    spread, worst = (run.known_spread(side) if len(scores) else None) or own  # of the population
    return {side: _mean(scores), f"{side}_sd": spread, f"{side}_worst": worst}


def _mean(scores: pd.Series[float]) -> float:
    return float(scores.mean(skipna=False)) if len(scores) else NOTHING


def constant_name(run: ReportedRun) -> str:
    """What a client can say without a model: its majority class, the best constant number, or equal risks."""
    kind = "numbers" if run.metric in NUMBERS else run.facts.get("kind")
    of_numbers = {"absolute": "median", "quantile": "quantile"}.get(
        settings_of(run).get("net.loss", ""), "mean"
    )
    return {"numbers": of_numbers, "survival": "equal risks"}.get(str(kind), "majority class")


def below_constant(run: ReportedRun) -> str:
    """That the models are surely worse than the constant prediction, with what would help; else ""."""
    lead = (_known(run, "personal") - _known(run, CONSTANT)) * run.better
    if run.trouble or not lead < 0 or not gain_of_these(with_side([run], CONSTANT)).high < 0:
        return ""
    return _worse_than_constant(_known(run, CONSTANT), [run])


def _worse_than_constant(constant: float, group: Sequence[ReportedRun]) -> str:
    """`worse than the constant model (RMSE 1.53): try a smaller lr`, for errors as for scores."""
    metric = group[0].metric
    return f"worse than the constant model ({named(metric)} {said_score(constant, metric)}){_advice(group)}"


def _advice(group: Sequence[ReportedRun]) -> str:
    """Settings that make a model poor where they are too large: rates, and strengths of a pull.

    A pull adds to the curvature, and a rate that was chosen without it is too large. Where rates were halved and the
    model is still poor, the data are to be looked at: a client in other units, or columns that are not scaled.
    """
    halvings = [halving for run in group for halving in run.facts.get("halvings") or []]
    if halvings:
        where = listed(list(dict.fromkeys(str(halving["whose"]) for halving in halvings)))
        return f": its rate was halved already, so look at data.scale and at the rows of {where}"
    if needs(group):
        return ": it was still improving when it stopped, so give it more rounds"
    run = group[0]
    method = (run.facts.get("settings") or {}).get("method") or {}
    names = [k for k in _TOO_LARGE if isinstance(method.get(k), int | float) and method[k] > 0]
    return f": try a smaller {' / '.join(names)}" if names else ""


def worst_tenth(scores: pd.Series[float], better: int) -> float:
    """Mean of the worst 10 % of the clients, rounded up to whole clients."""
    many = -(-len(scores) // 10)
    worst = (scores * better).sort_values()[:many] * better
    return _mean(worst) if not scores.isna().any() else NOTHING


# ---- methods side by side ----


def comparison(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """One row for each method, best mean validation score first; the constant prediction last.

    Test scores are means over seeds and splits of means over clients. `sd` is over clients, averaged over seeds;
    `seed_sd` (of a sample) is there with several runs. `gain_local` is the mean gain of a client over its own
    kind trained alone (`alone_is`), positive is better, with a 95 % interval; `clients_better`, … count clients
    by their own test rows. `best` is chosen by validation scores among the federated methods; `p_best` is the
    chance of a difference to it as large as the test scores have, corrected for the number of methods.
    `starred`: the gain is clear also with the intervals of all federated methods at once. attrs["outcomes"] has better,
    same or worse of every unit, by the row's label.
    """
    import pandas as pd

    check_comparable(runs)
    groups = _groups([*runs, *_constants(runs)])
    sound = {label: _sound(group) for label, group in groups.items()}
    each = {label: outcomes(alone(group, sound)[0]) for label, group in sound.items()}
    many = sum(bool(_sound(g)) and g[0].method not in ROLES for g in groups.values())  # federated methods
    level = together(many)
    rows = [_row(group) | _gains(sound[label], sound, each[label], level) for label, group in groups.items()]
    rows = [row | {"starred": many > 1 and row["federated"] and row["clear_gain"]} for row in rows]
    once = ""  # what the intervals of the mean gain leave out, where every method was trained once
    known = any(
        r["gain_local_low"] or r["gain_local_high"] for r in rows if not math.isnan(r["gain_local_low"])
    )
    if known and len({(run.split, run.seed) for run in _sound(runs)}) < 2:
        fixed = all(run.fixed_tests for run in runs)
        what, advice = ("seed", "") if fixed else ("split or seed", ", or --splits 0-2")
        once = f"One training: what another {what} would change is not in the interval; --seeds 0-2{advice}."
    better = runs[0].better
    rows.sort(key=lambda row: _rank(row, better))
    frame = pd.DataFrame(_with_best(rows, sound))
    if not any(len(group) > 1 for group in sound.values()):
        frame = frame.drop(columns="seed_sd")
    frame.attrs = {
        "metric": runs[0].metric, "better": better, "data": runs[0].facts.get("data"),
        "seeds": sorted({run.seed for run in runs}), "splits": sorted({run.split for run in runs}),
        "natural": all(run.natural for run in runs), "what_varies": what_varies(runs),
        "warnings": _warnings(runs) + _below(rows, sound),
        "outcomes": each, "corrected_for": many, "one_training": once,
    }  # fmt: skip
    return frame


def what_varies(runs: Sequence[ReportedRun]) -> str:
    """What repeated runs of a method differ in, where the data fix the test rows; else nothing. What is drawn anew
    with other test rows needs no words."""
    if not all(run.fixed_tests for run in runs):
        return ""
    drawn = len({str(run.facts.get("fingerprint")) for run in runs}) > 1
    parts = ["initial weights and batches"] if len({run.seed for run in runs}) > 1 else []
    parts += ["validation rows"] if drawn and len({run.split for run in runs}) > 1 else []
    return " and ".join(parts) if len(parts) < 2 else "initial weights, batches and validation rows"


def _groups(runs: Sequence[ReportedRun]) -> dict[str, list[ReportedRun]]:
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def _sound(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if not run.trouble]


def _constants(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The constant prediction as if it were a method: of each split and seed once."""
    found: dict[tuple[int, int], ReportedRun] = {}
    for run in _sound(runs):
        if len(run.of(CONSTANT)):
            found.setdefault((run.split, run.seed), _constant(run))
    return list(found.values())


def _constant(run: ReportedRun) -> ReportedRun:
    test, val = (f[f["side"] == CONSTANT].assign(side="personal") for f in (run.test, run.val))
    facts = run.facts | {"method": CONSTANT, "seconds": 0.0, "server_test": None, "privacy": None}
    return replace(
        run, label=constant_name(run), facts=facts, test=test, val=val, rounds=run.rounds[:0], notes=()
    )


def _rank(row: dict[str, Any], better: int) -> tuple[Any, ...]:
    """By validation; methods without scores after all others, the constant prediction last."""
    missing = math.isnan(row["validation"])
    place = 0.0 if missing else -better * row["validation"]
    return row["role"] == ROLES[CONSTANT], math.isnan(row["personal"]), missing, place, natural(row["method"])


def _row(group: Sequence[ReportedRun]) -> dict[str, Any]:
    """One method: the mean over seeds and splits of what its sound runs found."""
    import pandas as pd

    blank = dict.fromkeys(summary(group[0]), NOTHING)
    found = pd.DataFrame([summary(run) for run in _sound(group)] or [blank])
    names = {
        "validation": "validation", "personal": "personal", "sd": "personal_sd", "worst": "personal_worst",
        "global": "global", "after_training": "after_training",
        "unseen": "unseen", "arrival": "arrival", "visit": "visit", "unseen_global": "unseen_global",
        "server_test": "server_test", "seconds": "seconds", "rounds": "rounds", "epsilon": "epsilon",
    }  # fmt: skip
    numbers = {name: float(found[key].astype(float).mean(skipna=False)) for name, key in names.items()}
    kib = {f"kib_{way}": float(found[way].astype(float).mean()) / 1024 for way in ("up", "down")}
    role = ROLES.get(group[0].method, "")
    return {
        "method": group[0].label, "name": _name(group[0]), "role": role, "federated": not role,
        "runs": len(group), "failed": sum(run.failed for run in group), "trouble": _trouble(group),
        "clients": group[0].sites or len(scored_units(group)[0]), "unscored": len(scored_units(_sound(group))[1]),
        **numbers, "seed_sd": float(found["personal"].astype(float).std(ddof=1)), **kib, "needs": needs(group),
    }  # fmt: skip


def _name(run: ReportedRun) -> str:
    """A row's name for people."""
    return f"{ROLES[POOLED]} ({run.label})" if run.method == POOLED else run.label


def _trouble(group: Sequence[ReportedRun]) -> str:
    """What went wrong, each reason once, with its seeds, and its splits where runs differ by them."""
    found: dict[str, list[ReportedRun]] = {}
    for run in group:
        if run.trouble:
            found.setdefault(run.trouble, []).append(run)
    return "; ".join(f"{splits_and_seeds(some, group)}: {what}" for what, some in found.items())


def splits_and_seeds(some: Sequence[ReportedRun], group: Sequence[ReportedRun]) -> str:
    """`seeds 0, 1`; `split 0, seed 0 and split 1, seeds 0, 1` of some runs of a group that has several splits."""
    # without a split of its own, a run's split is its seed
    several = len({run.split for run in group}) > 1 and any(run.split != run.seed for run in group)
    seeds: dict[str, list[str]] = {}
    for run in some:
        seeds.setdefault(f"split {run.split}, " * several, []).append(str(run.seed))
    return " and ".join(
        f"{split}seed{'s' * (len(which) > 1)} {', '.join(which)}" for split, which in seeds.items()
    )


def _gains(
    group: Sequence[ReportedRun], groups: Groups, each: Mapping[Any, str], level: float
) -> dict[str, Any]:
    """What each client gains over its own kind trained alone, on average, and how many are better off.

    `clear_gain`: an interval of this level, with which those of all federated methods hold at once, is above zero.
    """
    some, what = alone(group, groups)
    frame = gain_frame(some)
    gain, called = mean_gain(frame), list(each.values())
    constant = gain_of_these(with_side(group, CONSTANT))
    return {
        "alone_is": what if gain.units else "", "gain_local": gain.mean, "gain_local_low": gain.low,
        "gain_local_high": gain.high, "pairs_local": gain.units,
        "rows_local": int(frame.drop_duplicates(["split", "unit"])["n"].sum()),
        "clear_gain": mean_gain(frame, level).above,
        **{f"clients_{name.replace(' ', '_')}": called.count(name) for name in OUTCOMES},
        "gain_constant": constant.mean, "gain_constant_low": constant.low, "gain_constant_high": constant.high,
    }  # fmt: skip


def _with_best(rows: Sequence[dict[str, Any]], groups: Groups) -> list[dict[str, Any]]:
    """The rows, with which is best by validation, and how sure test scores are that others differ from it."""
    able = [
        r
        for r in rows
        if r["federated"] and not r["trouble"] and not math.isnan(r["personal"] + r["validation"])
    ]  # a method that failed on a hard split is not compared with one that did not
    best = able[0]["method"] if able else None
    others = [r["method"] for r in able[1:]]
    frames = [gain_frame(pairs(groups[best], groups[name])) for name in others] if best else []
    sure = dict(zip(others, holm([chance(frame) for frame in frames]), strict=True))
    ahead = {name for name, frame in zip(others, frames, strict=True) if mean_gain(frame).mean < 0}
    ahead = {name for name in ahead if sure[name] < SIGNIFICANT}
    apart = bool(sure) and max(sure.values()) < SIGNIFICANT and not ahead
    return [
        row | {"best": row["method"] == best, "distinct": row["method"] == best and apart,
               "p_best": sure.get(row["method"], NOTHING), "beats_best": row["method"] in ahead}
        for row in rows
    ]  # fmt: skip


def _warnings(runs: Sequence[ReportedRun]) -> list[str]:
    found = []
    if splits := differing_clients(runs):
        named = ", ".join(map(str, splits))
        found.append(f"The runs on split {named} do not have the same clients: gains compare unlike data.")
    groups = _groups(_sound(runs)).values()
    keys = [{(run.split, run.seed) for run in group} for group in groups]
    if keys and not set.intersection(*keys):
        found.append("No seed was run by every method: part of the differences is between seeds.")
    elif any(some != keys[0] for some in keys):
        found.append("Not every method has every seed: methods are compared on the seeds that both have.")
    return found + _unlike_rates(runs) + remark(runs) + _notes(runs) + _halved(runs)


def _unlike_rates(runs: Sequence[ReportedRun]) -> list[str]:
    """Learning rates that were left open and chosen unlike each other, of runs on the same split and seed: rows then
    differ in more than their settings say."""
    chosen: dict[str, dict[str, float]] = {}  # rate: {row: value}
    for run in (r for r in runs if (r.split, r.seed) == (runs[0].split, runs[0].seed)):
        asked, method = ((run.facts.get(k) or {}).get("method", {}) for k in ("asked", "settings"))
        for name in (k for k, v in asked.items() if v == AUTO and isinstance(method.get(k), float)):
            chosen.setdefault(name, {})[run.label] = method[name]
    said, words = [], []
    for name, values in chosen.items():
        least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        if values[most] <= _ALIKE * values[least]:
            continue
        # where all rows are of one method, what is in the brackets of their labels says enough
        parts = {row: row.partition(" (") for row in values}
        short = len({p[0] for p in parts.values()}) == 1 and all(p[1] for p in parts.values())
        ends = {row: parts[row][2].removesuffix(")") if short else row for row in (most, least)}
        said.append(f"{name} {' to '.join(f'{values[row]:g} ({end})' for row, end in ends.items())}")
        words.append(f"method.{name}={values[least]:g}")
    holds = "holds" if len(words) == 1 else "hold"
    text = f"differ between rows: {', '.join(said)}. {' '.join(words)} {holds} them equal."
    return [f"Learning rates that motet chose {text}"] if said else []


def _notes(runs: Sequence[ReportedRun]) -> list[str]:
    """What runs say of themselves: once where all say it, else with their names."""
    said: dict[str, list[str]] = {}
    for run, note in ((one, note) for one in runs for note in one.notes):
        said.setdefault(note, []).append(f"{run.label}, seed {run.seed}")
    return [note if len(who) == len(runs) else f"{'; '.join(who)}: {note}" for note, who in said.items()]


def _halved(runs: Sequence[ReportedRun]) -> list[str]:
    """A line for each row whose runs halved their rates: in how many of them, and how often."""
    found = []
    for label, group in _groups(runs).items():
        said = Counter(filter(None, (rates_halved(run.facts) for run in group)))
        of = f" of {len(group)} runs" if len(group) > 1 else ""
        parts = [f"{text} in {many}{of}" if of else text for text, many in said.items()]
        found += [f"{label}: {'; '.join(parts)}."] if parts else []
    return found


def _below(rows: Sequence[dict[str, Any]], groups: Groups) -> list[str]:
    """A line for each method that is surely worse than the constant prediction."""
    constant = next((row["personal"] for row in rows if row["role"] == ROLES[CONSTANT]), NOTHING)
    return [
        f"{row['method']}: {_worse_than_constant(constant, groups[row['method']])}."
        for row in rows
        if row["gain_constant_high"] < 0
    ]


# ---- client by client ----


def by_client(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """client, train, and a column of personal test scores for each method: the mean over seeds.

    Where clients are drawn anew in every split, a row is a client of one split: the column split says which.
    """
    frame = with_unscored(client_scores(runs), runs)
    if not frame.attrs["drawn"]:
        frame = frame.drop(columns="split")
    return frame.reset_index(drop=True)


def client_scores(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """split, client, train, and a column for each method; the index is a name for each unit.

    Methods are compared on the splits and seeds that all of them have, if there are such.
    """
    import pandas as pd

    check_comparable(runs)
    drawn = not all(run.natural for run in runs) and len({run.split for run in runs}) > 1
    parts = [
        pd.DataFrame({"score": run.of("personal"), "train": run.clients.set_index("client")["train"]})
        .dropna(subset="score").rename_axis("client").reset_index()
        .assign(label=run.label, method=run.method, key=f"{run.split} {run.seed}", split=run.split if drawn else 0)
        for run in _fair(_sound(runs))
    ]  # fmt: skip
    empty = pd.DataFrame({c: [] for c in ("score", "train", "client", "label", "method", "split")})
    rows = pd.concat(parts, ignore_index=True) if parts else empty
    labels = sorted(rows["label"].unique(), key=natural)
    scores = rows.pivot_table("score", ["split", "client"], "label", aggfunc="mean").reindex(columns=labels)
    frame = scores.rename_axis(columns=None)
    frame.insert(0, "train", rows.groupby(["split", "client"])["train"].mean())
    frame = frame.reset_index().sort_values(
        ["split", "client"], key=lambda c: c.map(lambda v: natural(str(v)))
    )
    frame.index = pd.Index(
        [f"{c}, split {s}" if drawn else c for s, c in zip(frame["split"], frame["client"], strict=True)]
    )
    reference = sorted(rows.loc[rows["method"] == ALONE, "label"].unique())
    rivals = sorted(rows.loc[rows["method"] != POOLED, "label"].unique(), key=natural)
    frame.attrs = {
        "labels": labels,
        "rivals": rivals,
        "alone": reference[0] if reference else None,
        "drawn": drawn,
    }
    return frame


def _fair(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs on splits and seeds that every method has; all of them if there are none."""
    keys = [{(run.split, run.seed) for run in group} for group in _groups(runs).values()]
    common = set.intersection(*keys) if keys else set()
    return [run for run in runs if not common or (run.split, run.seed) in common]


# ---- all in rows ----


def long(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """split, seed, method, label, side, client, metric, value, n: every test score of the reported models.

    Runs in trouble are not in it. A metric that a client lacks has no row.
    """
    import pandas as pd

    names = ["split", "seed", "method", "label", "side", "client", "metric", "value", "n"]
    parts = [pd.DataFrame({name: [] for name in names})]
    for run in _sound(runs):
        wide = run.test.drop(columns=["seen", "score"])
        rows = wide.melt(["side", "client", "n"], var_name="metric", value_name="value")
        rows = rows.dropna(subset="value")
        parts.append(rows.assign(split=run.split, seed=run.seed, method=run.method, label=run.label)[names])
    return pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)


# ---- round by round ----


def history(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """method, side, round, score, seeds: validation scores, mean over clients and then over seeds.

    Runs in trouble are in it too, as far as they came: their curves show what happened.
    """
    import pandas as pd

    check_comparable(runs)
    parts = [run.val[run.val["side"].isin(CURVES)].assign(method=run.label, seed=run.seed) for run in runs]
    rows = pd.concat(parts, ignore_index=True).groupby(["method", "side", "round"])["score"]
    return rows.agg(score=lambda s: s.mean(skipna=False), seeds="size").reset_index()
