"""Figures 2 to 6 of the stacking paper: which cells they need, and which numbers they show.

A row of an experiment is "DATA NAME=VALUE": the data set, and the setting that the figure varies. Rows that
are a data set's name alone hold trends over all of its values. Gains are in balanced accuracy. "leaky_vehicle_loan"
is Vehicle Loan as published, with a feature that counts the target; "vehicle_loan" is without it.
Knows figures and outcomes of cells. Does not know how cells are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, perform

Array = np.ndarray[Any, Any]
Result = Mapping[str, Any]
Rows = dict[str, dict[str, Any]]
Say = Callable[[str], None]
LEAKY = "leaky_"  # in front of a data set's name


def cell_of(settings: Mapping[str, Any], row: str, seed: int) -> Cell:
    """The cell of one row and seed. Settings by data set: `data`, `some` rows, `repeats`."""
    data, _, text = row.partition(" ")
    name, _, value = text.partition("=")
    chosen = {name: float(value)} if name and name != "p" else {}
    options = dict(settings.get("options", {})) | chosen
    plain = data.removeprefix(LEAKY)
    own = {k: v[plain] for k, v in settings.get("data", {}).items() if plain in v}
    if plain == "vehicle_loan":
        own["as_published"] = data != plain
    how = dict(settings.get("how", {})) | {"repeats": settings["repeats"].get(plain, 1)}
    share = float(value) if name == "p" else float(settings.get("share", 1.0))
    some = settings.get("some", {}).get(plain, 0)
    return Cell(plain, settings["split"], seed, own, options, share, how, rows=some)


def seeds_of(settings: Mapping[str, Any], row: str) -> list[int]:
    """The first of the seeds, as many as this data set is given time for."""
    most = settings.get("most", {}).get(row.partition(" ")[0].removeprefix(LEAKY), len(settings["seeds"]))
    return list(settings["seeds"])[:most]


def results_of(settings: Mapping[str, Any], out: Path, jobs: int, say: Say) -> dict[str, list[Result]]:
    """By row, the results of all its seeds."""
    wanted = [(r, s) for r in settings["rows"] if "=" in r for s in seeds_of(settings, r)]
    wanted += [
        (r, s) for r in settings["rows"] if settings["split"] == "natural" for s in seeds_of(settings, r)
    ]
    results = perform([cell_of(settings, r, s) for r, s in wanted], out, jobs, say)
    found: dict[str, list[Result]] = {}
    for (row, _), result in zip(wanted, results, strict=True):
        found.setdefault(row, []).append(result)
    return found


def follow(
    settings: Mapping[str, Any],
    out: Path,
    jobs: int,
    say: Say,
    trends: Callable[[list[Result]], dict[str, float]],
) -> tuple[Rows, dict[str, list[Result]]]:
    """Rows of an experiment, one of trends for each data set whose name is among the rows, and all results."""
    results = results_of(settings, out, jobs, say)
    rows = {row: as_row([means(r) for r in found], found) for row, found in results.items()}
    for row, found in results.items():
        say(f"  {row}, {len(found)} seeds: {claims(found)}")
    for row in settings["rows"]:
        some = [r for other, found in results.items() if other.startswith(f"{row} ") for r in found]
        if row not in rows and some:
            rows[row] = as_row([trends(some)], ())
            say(f"  {row}: {trend_claims(some, trends)}")
    return {row: rows[row] for row in settings["rows"] if row in rows}, results


def claims(found: Sequence[Result]) -> str:
    """Gains of both stacks and their difference, each with the 95 % interval of its mean over seeds."""
    held, pooled = ([float(gain(plain(r), s).mean()) for r in found] for s in ("held", "pooled"))
    apart = [a - b for a, b in zip(held, pooled, strict=True)]
    return f"held {with_interval(held)}, pooled {with_interval(pooled)}, apart {with_interval(apart)}"


def trend_claims(some: list[Result], trends: Callable[[list[Result]], dict[str, float]]) -> str:
    """Correlations of each seed by itself: the mean with its 95 % interval."""
    seeds = sorted({int(r["cell"]["seed"]) for r in some})
    each = [trends([r for r in some if r["cell"]["seed"] == seed]) for seed in seeds]
    return ", ".join(f"{name} {with_interval([e[name] for e in each], 2)}" for name in each[0])


def with_interval(values: Sequence[float], digits: int = 4) -> str:
    """`+0.0120 (+0.0101 to +0.0139)`: mean and 95 % interval (Student's t); one value alone has none."""
    low, high = bounds(values)
    mean = f"{np.mean(values):+.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ({low:+.{digits}f} to {high:+.{digits}f})"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    from scipy.stats import t

    mean, many = float(np.mean(values)), len(values)
    if many < 2:
        return mean, mean
    wide = float(t.ppf(0.975, many - 1) * np.std(values, ddof=1) / np.sqrt(many))
    return mean - wide, mean + wide


def as_row(numbers: Sequence[Mapping[str, float]], results: Sequence[Result]) -> dict[str, Any]:
    names = dict.fromkeys(k for n in numbers for k in n)
    values = {k: [n[k] for n in numbers if k in n] for k in names}
    cpu = {"seconds": sum(float(r["cpu_seconds"]) for r in results)} if results else {}
    return {"values": values, "failures": []} | cpu


# ---- numbers of one cell ----


def gain(outcome: Mapping[str, Any], stack: str) -> Array:
    """(clients,) mean over repeats of what a stack scores above the baseline."""
    return np.asarray((np.array(outcome[stack]) - np.array(outcome["baseline"])).mean(1))


def own(outcome: Mapping[str, Any], stack: str) -> Array:
    """(clients,) self-importance."""
    return np.diag(np.array(outcome[f"trust_{stack}"]))


def plain(result: Result) -> Mapping[str, Any]:
    """The only outcome of a cell without variants of public models."""
    (outcome,) = result["outcomes"].values()
    return outcome  # type: ignore[no-any-return]


def means(result: Result) -> dict[str, float]:
    """Means over clients, for each variant of public models that was computed."""
    found: dict[str, float] = {}
    for key, o in result["outcomes"].items():
        tag = "" if len(result["outcomes"]) == 1 else f" {key}"
        found[f"baseline{tag}"] = float(np.mean(o["baseline"]))
        for stack in [s for s in ("held", "pooled") if s in o and not np.isnan(o[s]).all()]:
            found[f"{stack}{tag}"] = float(gain(o, stack).mean())
            found[f"{stack} self{tag}"] = float(own(o, stack).mean())
    return found


# ---- trends over cells: Spearman's rank correlation ----


def correlation(a: Sequence[Array], b: Sequence[Array]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(np.concatenate(a), np.concatenate(b)).statistic)


def importance(outcome: Mapping[str, Any]) -> Array:
    """(clients,) each one's part of all importances that others give."""
    trust = np.array(outcome["trust_held"])
    np.fill_diagonal(trust, 0.0)
    return np.asarray(trust.sum(0) / trust.sum())


def by_size(results: list[Result]) -> dict[str, float]:
    """Figure 2 d to f: what grows with a client's number of rows."""
    sizes = [np.array(r["clients"]["rows"], float) for r in results]
    return {
        "size~gain": correlation(sizes, [gain(plain(r), "held") for r in results]),
        "size~importance": correlation(sizes, [importance(plain(r)) for r in results]),
        "size~self": correlation(sizes, [own(plain(r), "held") for r in results]),
    }


def balance(result: Result) -> Array:
    """(clients,) how even a client's two classes are: 1 if half and half."""
    return np.asarray(1 - 2 * np.abs(np.array(result["clients"]["positive"]) - 0.5))


def by_balance(results: list[Result]) -> dict[str, float]:
    """Figure 3 d to f: what grows as classes become more even, and as two clients' classes become alike."""
    even = [balance(r) for r in results]
    mine, other, trust = pairs_by_label(results)
    return {
        "balance~gain": correlation(even, [gain(plain(r), "held") for r in results]),
        "balance~importance": correlation(even, [importance(plain(r)) for r in results]),
        "likeness~importance": correlation([1 - np.abs(mine - other)], [trust]),
    }


def pairs_by_label(results: Sequence[Result]) -> tuple[Array, Array, Array]:
    """Figure 3 f, for each pair of clients: the share of positives of the one that trusts, of the other, the trust."""
    mine, other, trust = [], [], []
    for r in results:
        share, apart = np.array(r["clients"]["positive"]), ~np.eye(len(r["clients"]["names"]), dtype=bool)
        mine.append(np.broadcast_to(share[:, None], apart.shape)[apart])
        other.append(np.broadcast_to(share, apart.shape)[apart])
        trust.append(np.array(plain(r)["trust_held"])[apart])
    return np.concatenate(mine), np.concatenate(other), np.concatenate(trust)


def by_thirds(results: Sequence[Result], parts: int = 3) -> Array:
    """(parts, parts): the mean trust by the share of positives of who trusts (down) and of the other (across)."""
    mine, other, trust = pairs_by_label(results)
    at = tuple(np.clip((v * parts).astype(int), 0, parts - 1) for v in (mine, other))
    sums, many = np.zeros((parts, parts)), np.zeros((parts, parts))
    np.add.at(sums, at, trust)
    np.add.at(many, at, 1)
    return np.where(many, sums / np.maximum(many, 1), np.nan)


def by_columns(results: list[Result], outcome: str = "all 0", stack: str = "held") -> dict[str, float]:
    """Figure 4 d: whether clients trust those whose columns are like theirs."""
    pairs = [~np.eye(len(r["clients"]["names"]), dtype=bool) for r in results]
    near = [np.array(r["clients"]["alike"])[p] for r, p in zip(results, pairs, strict=True)]
    trust = [
        np.array(r["outcomes"][outcome][f"trust_{stack}"])[p] for r, p in zip(results, pairs, strict=True)
    ]
    return {"jaccard~importance": correlation(near, trust)}


def by_client(results: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
    """Figure 5 b: each natural client's baseline and gains, a value for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for i, name in enumerate(results[0]["clients"]["names"]):
        found[name] = {"baseline": [float(np.mean(plain(r)["baseline"][i])) for r in results]}
        found[name] |= {s: [float(gain(plain(r), s)[i]) for r in results] for s in ("held", "pooled")}
    return found
