"""Figures 2 to 6 of the stacking paper: which cells they need, and which numbers they show.

A row of an experiment is "DATA NAME=VALUE": the data set, and the setting that the figure varies. Rows that
are a data set's name alone hold trends over all of its values. Gains are in balanced accuracy.
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


def cell_of(settings: Mapping[str, Any], row: str, seed: int) -> Cell:
    """The cell of one row and seed. Settings by data set: `data`, `some` rows, `repeats`."""
    data, _, text = row.partition(" ")
    name, _, value = text.partition("=")
    chosen = {name: float(value)} if name and name != "p" else {}
    options = dict(settings.get("options", {})) | chosen
    own = {k: v[data] for k, v in settings.get("data", {}).items() if data in v}
    if data == "vehicle_loan":
        own["as_published"] = bool(settings.get("as_published", False))
    how = dict(settings.get("how", {})) | {"repeats": settings["repeats"].get(data, 1)}
    share = float(value) if name == "p" else float(settings.get("share", 1.0))
    return Cell(
        data, settings["split"], seed, own, options, share, how, settings.get("some", {}).get(data, 0)
    )


def seeds_of(settings: Mapping[str, Any], row: str) -> list[int]:
    """The first of the seeds, as many as this data set is given time for."""
    most = settings.get("most", {}).get(row.partition(" ")[0], len(settings["seeds"]))
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
) -> Rows:
    """Rows of an experiment, and one of trends for each data set whose name is among the rows."""
    results = results_of(settings, out, jobs, say)
    rows = {row: as_row([means(r) for r in found], found) for row, found in results.items()}
    for row in settings["rows"]:
        some = [r for other, found in results.items() if other.startswith(f"{row} ") for r in found]
        if row not in rows and some:
            rows[row] = as_row([trends(some)], ())
    return {row: rows[row] for row in settings["rows"] if row in rows}


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


def by_balance(results: list[Result]) -> dict[str, float]:
    """Figure 3 d and e: what grows as a client's classes become more even."""
    even = [1 - 2 * np.abs(np.array(r["clients"]["positive"]) - 0.5) for r in results]
    return {
        "balance~gain": correlation(even, [gain(plain(r), "held") for r in results]),
        "balance~importance": correlation(even, [importance(plain(r)) for r in results]),
    }


def by_columns(results: list[Result], outcome: str = "all 0") -> dict[str, float]:
    """Figure 4 d: whether clients trust those whose columns are like theirs."""
    pairs = [~np.eye(len(r["clients"]["names"]), dtype=bool) for r in results]
    near = [np.array(r["clients"]["alike"])[p] for r, p in zip(results, pairs, strict=True)]
    trust = [np.array(r["outcomes"][outcome]["trust_held"])[p] for r, p in zip(results, pairs, strict=True)]
    return {"jaccard~importance": correlation(near, trust)}


def by_client(results: Sequence[Result]) -> list[tuple[str, float, float, float]]:
    """Figure 5 b: each natural client's name, baseline and gains, mean over seeds."""
    names = results[0]["clients"]["names"]
    base = np.mean([np.mean(plain(r)["baseline"], axis=1) for r in results], axis=0)
    held, pooled = (np.mean([gain(plain(r), s) for r in results], axis=0) for s in ("held", "pooled"))
    return list(zip(names, base.tolist(), held.tolist(), pooled.tolist(), strict=True))
