"""The audit of a run: each attack against what the run lets others learn, with a figure and its interval.

    found = audit("runs/digits-fedavg-seed0-1a2b3c4d")

Knows which attack needs what of a run. Does not know how figures are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from motet.audits.attack_figures import Figure
from motet.audits.gradient_inversion import REASONS, after_chain, after_masks, inversions
from motet.audits.label_inference import from_contributions, from_vectors
from motet.audits.recorded_replies import RecordedAsk, Recorder
from motet.audits.replay import (
    EachRound,
    OpenedRun,
    Say,
    innermost,
    is_same,
    keep_fact,
    log,
    open_run,
    replaying,
)
from motet.audits.shadow_runs import Pools, membership, scores_of, shadow_scores
from motet.errors import UsageError
from motet.guard.pairs.chain import Chain
from motet.runs.build import Resolved, chain_of
from motet.runs.client_privacy import ClientLevelBudget
from motet.runs.trainer import Observer, Trainer
from motet.text import unknown
from motet.trusted_code import Consent

ATTACKS = ("membership", "inversion", "labels", "property")
_FEWEST = 2  # rows on each side: one half of them is decided by the other
Begun = Callable[[str], Observer | None]


def audit(
    folder: str | Path,
    *,
    attacks: Sequence[str] = ATTACKS,
    shadows: int = 16,  # shadow runs; 0: the loss threshold alone
    examples: int = 10,  # that are inverted
    observer: Begun = lambda what: None,
    say: Say = log.warning,
    trust: Consent = False,
) -> dict[str, Any]:
    """Attack a run, keep what was found with it, and return it as plain data."""
    check_attacks(attacks, shadows, examples)
    opened = open_run(folder, trust, say)
    figures: list[Figure] = []
    skipped: dict[str, str] = {}
    with replaying(opened.resolved) as trainer:
        recorder = Recorder(trainer.engine, innermost(trainer.engine))
        trainer.engine = recorder
        vectors: list[RecordedAsk] = []
        trainer.run(EachRound(partial(keep_vectors, recorder, vectors), observer("replay")))
        same, pools = is_same(opened, trainer), Pools.of(opened.resolved.training.clients_data)
        target = {}
        if "membership" in attacks and can_lose(opened, pools, skipped):
            target = scores_of(trainer, pools)
    if target:
        figures += membership(opened, target, pools, shadow_scores(opened, pools, shadows, observer))
    if "inversion" in attacks:
        figures += inverted_figures(opened, examples, skipped)
    figures += label_figures(opened, attacks, vectors, skipped)
    found = as_data(opened, figures, skipped, same)
    keep_fact(opened.folder, "audit", found, f"audited by {', '.join(attacks)}")
    return found


def check_attacks(attacks: Sequence[str], shadows: int, examples: int) -> None:
    for name in attacks:
        if name not in ATTACKS:
            raise UsageError(unknown("attack", name, ATTACKS))
    if not attacks:
        raise UsageError(f"no attack is named; there are {', '.join(ATTACKS)}")
    if shadows < 0 or shadows == 1:
        raise UsageError(
            f"shadows is {shadows}; expected 0, or at least 2: some with a row and some without it"
        )
    if examples < 1:
        raise UsageError(f"examples is {examples}; expected at least 1")


def can_lose(opened: OpenedRun, pools: Pools, skipped: dict[str, str]) -> bool:
    """Whether single rows have losses of their own, and some of them trained nothing."""
    members = int(pools.members.sum())
    if min(members, len(pools.members) - members) < _FEWEST:
        skipped["membership"] = (
            f"{members:,} of {len(pools.members):,} rows are training rows: there are no two sides to tell apart"
        )
        return False
    if opened.resolved.task.kind == "survival":
        skipped["membership"] = "the loss of a row of survival depends on the other rows"
        return False
    return True


def keep_vectors(recorder: Recorder, found: list[RecordedAsk], trainer: Trainer, before: Any) -> None:
    found += [a for a in recorder.asks if a.verb == "sparsity" and a.replies]


# ---- inversion ----


def inverted_figures(opened: OpenedRun, examples: int, skipped: dict[str, str]) -> list[Figure]:
    """Updates of one example as the server would have them: without guards, and with the run's."""
    resolved, guard = opened.resolved, opened.resolved.recipe.guard
    leaves: dict[str, Callable[..., Any]] = {"no guard": lambda e, k: e.reply}
    if chain := chain_of(guard):
        leaves[guards_in_words(guard)] = lambda e, k: after_chain(chain, e, k)
    leaves |= private_leaves(resolved)
    name = "masked" if guard.masked else "masked (not in this run)"
    leaves[name] = lambda e, k: after_masks(e, guard.mask_bits, guard.mask_range)
    data = dict(resolved.training.clients_data)
    try:
        found = inversions(resolved.method, resolved.task, data, leaves, examples, resolved.recipe.seed)
    except REASONS as e:
        skipped["inversion"] = str(e).splitlines()[0]
        return []
    return [f.figure() for f in found]


def private_leaves(resolved: Resolved) -> dict[str, Callable[..., Any]]:
    """What leaves a client of a private run; a trusted server adds its noise later, and has the clipped update."""
    level, budget = resolved.recipe.privacy.level, resolved.budget
    if level == "example":
        return {f"differential privacy ({level})": lambda e, k: e.private}
    if not isinstance(budget, ClientLevelBudget) or resolved.recipe.privacy.noise == "server":
        return {}
    noised = Chain((budget.guard(resolved.recipe.guard),))
    return {f"differential privacy ({level})": lambda e, k: after_chain(noised, e, k)}


def guards_in_words(guard: Any) -> str:
    said = [f"clip {guard.clip:g}"] * bool(guard.clip) + [f"{guard.bits} bits"] * (guard.bits != 32)
    return ", ".join([*said, *[f"top {guard.top:g}"] * (guard.top < 1)]) or "the run's guards"


# ---- labels ----


def label_figures(
    opened: OpenedRun, attacks: Sequence[str], vectors: Sequence[RecordedAsk], skipped: dict[str, str]
) -> list[Figure]:
    """Label distributions, from sparsity vectors and from contribution scores."""
    resolved, found = opened.resolved, list[Figure | None]()
    data, classes = dict(resolved.training.clients_data), resolved.task.outputs
    asked = [a for a in ("labels", "property") if a in attacks]
    if resolved.task.kind != "classes":
        skipped |= dict.fromkeys(asked, "the targets are no classes")
        return []
    if "labels" in asked:
        if vectors:
            method: Any = resolved.method
            measuring = replace(method, epsilon=0.0)  # on rows of its own the attacker needs no noise
            found.append(from_vectors(vectors[0], data, classes, measuring.sparsity, float(method.epsilon)))
        else:
            skipped["labels"] = f"{opened.facts['method']} sends no sparsity vectors"
    if "property" in asked:
        record = opened.facts.get("contributions") or opened.facts.get("record") or {}
        if record.get("trust"):
            found.append(from_contributions(record["trust"], data, classes))
        else:
            skipped["property"] = f"no contributions were measured (motet contributions {opened.folder})"
    if None in found:
        skipped["clients"] = "an attack on labels needs three clients that sent something"
    return [f for f in found if f is not None]


# ---- as plain data ----


def as_data(
    opened: OpenedRun, figures: Sequence[Figure], skipped: Mapping[str, str], same: bool
) -> dict[str, Any]:
    guard = opened.resolved.recipe.guard
    said = guards_in_words(guard) if chain_of(guard) else ""
    return {
        "figures": [f.row() for f in figures],
        "skipped": dict(skipped),
        "guards": ", ".join([*([said] if said else []), *["masked sums"] * guard.masked]) or "none",
        "epsilon": epsilon_of(opened.facts),
        "delta": (opened.facts.get("privacy") or {}).get("delta"),
        "level": (opened.facts.get("privacy") or {}).get("level"),
        "same_bits": same,
    }


def epsilon_of(facts: Mapping[str, Any]) -> float | None:
    """The privacy budget that the client spent which spent most; None where nothing was private."""
    found = (facts.get("privacy") or {}).get("epsilon")
    return None if found is None else float(found)
