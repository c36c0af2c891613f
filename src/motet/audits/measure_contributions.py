"""What each client contributed to a run of any method: GTG-Shapley, leaving one out, models at other sites, names.

    found = measure("runs/digits-fedavg-seed0-1a2b3c4d")

The run is played again and its replies are recorded. What comes out has the form of stacking's contributions: trust
({site: {client: share}}), centralities, policies; so the same graph, tables and files show both.
Knows replays and the contribution graph. Does not know how results are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from motet.audits.coalitions import By, How, Measurement, side_of
from motet.audits.cross_site import cross_matrix, final_scores, leave_one_out
from motet.audits.replay import EachRound, OpenedRun, Say, is_same, keep_fact, log, open_run, replaying
from motet.audits.shapley import USUAL, Sampling, Values
from motet.audits.update_checks import Updates, named_by_updates, named_by_weights, t_interval
from motet.client.population import total_of
from motet.core import Client
from motet.errors import RunError, UsageError
from motet.runs.trainer import Observer, Trainer
from motet.stacking import contribution
from motet.trusted_code import Consent

Side = Literal["auto", "global", "personal"]
WAYS = ("auto", "exact", "gtg", "none")
_HISTORY = 1000  # rounds whose contributions are kept
_MOST_EXACT_ASKED = 16  # clients of an exact game that somebody asked for: 65,536 coalitions in each round


def measure(
    folder: str | Path,
    *,
    shapley: str = "auto",  # auto: exact up to 8 clients in a round, else gtg
    leave_out: bool = True,  # also replay the run without each client
    by: By = "loss",
    side: Side = "auto",
    seed: int = 0,  # of orders that GTG-Shapley draws
    sampling: Sampling = USUAL,
    threshold: float = 0.0,  # contribution below which a client would be served nothing; 1: an equal part
    versions: int = 1,  # of models that clients would be served by contribution
    observer: Callable[[str], Observer | None] = lambda what: None,  # for each replay, whose name it is given
    say: Say = log.warning,
    trust: Consent = False,
) -> dict[str, Any]:
    """Measure contributions, keep them with the run, and return them as plain data."""
    check_options(shapley, leave_out, by, side)
    opened = open_run(folder, trust, say)
    check_clients(opened, shapley)
    with replaying(opened.resolved) as trainer:
        measured, updates = watch_replay(opened, trainer, shapley, by, side, seed, sampling, observer)
        chosen = side_of(trainer, side)
        same, whole, matrix = (
            is_same(opened, trainer),
            final_scores(trainer, chosen, by),
            cross_matrix(trainer),
        )
    if not same:
        say(
            f"{opened.folder}: the replay gives other bits than the run, so that what is measured is of the replay"
        )
    left = leave_one_out(opened.resolved, opened.clients, whole, chosen, by, observer) if leave_out else {}
    found = in_words(opened, measured, updates, left, list(whole))
    found |= {"cross_site": matrix, "same_bits": same, "by": by, "side": chosen, "threshold": threshold}
    found |= policies(found["trust"], opened.clients, threshold, versions)
    keep_fact(opened.folder, "contributions", found, f"contributions were measured ({found['way']})")
    return found


def check_options(shapley: str, leave_out: bool, by: str, side: str) -> None:
    for name, value, known in (
        ("shapley", shapley, WAYS),
        ("by", by, ("loss", "metric")),
        ("side", side, ("auto", "global", "personal")),
    ):
        if value not in known:
            raise UsageError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    if shapley == "none" and not leave_out:
        raise UsageError(
            "neither Shapley values nor leaving one out is asked for: nothing is left to measure"
        )


def check_clients(opened: OpenedRun, shapley: str) -> None:
    many = len(opened.clients)
    if many < 2:
        raise RunError(
            f"{opened.folder} has one client, {opened.clients[0]}: there is nobody to contribute to"
        )
    if shapley == "exact" and many > _MOST_EXACT_ASKED:
        raise UsageError(
            f"exact Shapley values of {many} clients need {2**many:,} coalitions in each round\n"
            "hint: --shapley gtg, which states its error"
        )


def watch_replay(
    opened: OpenedRun,
    trainer: Trainer,
    shapley: str,
    by: By,
    side: str,
    seed: int,
    sampling: Sampling,
    observer: Callable[[str], Observer | None],
) -> tuple[Measurement, Updates]:
    """Play the run again, and measure after each round."""
    way: How = "gtg" if shapley == "none" else shapley  # type: ignore[assignment]
    measured = Measurement.of(trainer, way, by, side, seed, sampling)
    updates = Updates()

    def after(trainer: Trainer, before: Any) -> None:
        updates.add(measured.recorder.asks)
        if shapley != "none":
            measured.on_round(trainer, before)

    trainer.run(EachRound(after, observer("replay")))
    return measured, updates


# ---- as plain data ----


def in_words(
    opened: OpenedRun,
    measured: Measurement,
    updates: Updates,
    left: Mapping[Client, Mapping[Client, float]],
    scored: Sequence[Client],
) -> dict[str, Any]:
    """Contributions in the form of stacking's: the graph, its measures, values with their errors, and names."""
    players, sites = list(measured.players), measured.sites or list(scored)
    values = measured.values() if measured.rounds else None
    matrix = values.matrix if values else loo_matrix(left, players, sites)
    trust = trust_of_matrix(matrix, players, sites)
    history = [contribution.in_strength(trust_of_matrix(r.matrix, players, sites)) for r in measured.rounds]
    data = opened.resolved.training.clients_data
    rows = {c: total_of(data, c) for c in players}
    place = {c: i for i, c in enumerate(sites)}
    noised = is_noised(opened)
    named = named_by_updates(updates, noised) | named_by_weights(updates, rows, measured.lighter, place)
    return {
        "trust": trust,
        "self_importance": contribution.self_importance(trust),
        "centralities": contribution.centralities(trust),
        "history": history[-_HISTORY:],
        "gives_little": contribution.giving_little(history, players),
        "free_riders": contribution.free_riders(named),
        "named": named,
        "noised": noised,
        "refused": {},
        "unmeasured": measured.unmeasured,
        "values": value_rows(players, sites, values, left),
        "matrix": {
            c: dict(zip(sites, map(float, row), strict=True)) for c, row in zip(players, matrix, strict=True)
        },
        **about(measured, values),
    }


def is_noised(opened: OpenedRun) -> bool:
    """Whether noise is in each client's update, and not only in their sum."""
    privacy = opened.resolved.recipe.privacy
    return privacy.level == "example" or (privacy.level == "client" and privacy.noise == "clients")


def about(measured: Measurement, values: Values | None) -> dict[str, Any]:
    """How values were found."""
    if values is None:
        return {"way": "leave one out", "coalitions": 0, "rounds": 0, "cut_rounds": 0}
    drawn = any(r.freedom > 0 or r.cut for r in measured.rounds)
    way = "GTG-Shapley" if drawn else "exact Shapley values of each round"
    return {
        "way": way,
        "coalitions": values.coalitions,
        "rounds": values.rounds,
        "cut_rounds": values.cut_rounds,
    }


def trust_of_matrix(
    matrix: Any, players: Sequence[Client], sites: Sequence[Client]
) -> dict[Client, dict[Client, float]]:
    """How each site's gain divides among clients; what harms it counts as nothing. Sites that nobody helps say
    nothing about others."""
    found = {}
    for k, site in enumerate(sites):
        gains = {c: max(float(row[k]), 0.0) for c, row in zip(players, matrix, strict=True)}
        found[site] = contribution.normalised(gains) if sum(gains.values()) > 0 else {site: 1.0}
    return found


def loo_matrix(
    left: Mapping[Client, Mapping[Client, float]], players: Sequence[Client], sites: Sequence[Client]
) -> Any:
    return np.array([[left.get(c, {}).get(s, 0.0) for s in sites] for c in players])


def value_rows(
    players: Sequence[Client],
    sites: Sequence[Client],
    values: Values | None,
    left: Mapping[Client, Mapping[Client, float]],
) -> dict[Client, dict[str, float | None]]:
    """For each client: its value to others with the stated error, to itself, and what others lose without it."""
    rows: dict[Client, dict[str, float | None]] = {}
    for j, c in enumerate(players):
        row: dict[str, float | None] = {}
        if values is not None:
            value = float(values.value[j])  # of nobody, if no other client has the score
            row["value"], row["error"] = value if np.isfinite(value) else None, float(values.error[j])
            row["own"] = float(values.matrix[j, sites.index(c)]) if c in sites else None
        if c in left:
            lost = np.array([v for s, v in left[c].items() if s != c])
            low, high = t_interval(lost)
            row["left_out"] = float(lost.mean()) if len(lost) else None
            row["left_out_low"], row["left_out_high"] = (low, high) if np.isfinite(low) else (None, None)
        rows[c] = row
    return rows


def policies(trust: Any, clients: Sequence[Client], threshold: float, versions: int) -> dict[str, Any]:
    """Who would be served what, if contribution decided; nothing where no policy was asked for."""
    if not threshold and versions == 1:
        return {}
    may = contribution.served(trust, clients, threshold)
    models = {c: [d for d in clients if d != c] if c in may else [] for c in clients}
    return {"served": contribution.policies_in_use(trust, models, threshold, versions)}
