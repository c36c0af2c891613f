"""A dry run: what would leave this site, verb by verb, found out on its own rows. Nothing is sent.

    print(dry_text(dry_run(source, policy, "fedper")))

The table lists what the handshake sends, then each verb that the method asks for, then what evaluation sends.
Below it stand the very values that the handshake would say: columns, categories, classes, counts, means.
The layout is the site's own: in a federation, other sites' categories and classes are added to it.
Knows needs and policies. Does not know other sites.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from motet.client import ClientData
from motet.client.visit import examples, single_threaded
from motet.core import Method, Tree
from motet.deploy.agreement.column_sums import pooled
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.schema import merge
from motet.deploy.site.contract import Contract, derive, objections, protected_method
from motet.deploy.site.leaving_values import described_values, few_rows, sum_values
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.loss_limits import loss_objections
from motet.deploy.site.needs import described, needs_of
from motet.deploy.site.policy import Need, Policy
from motet.deploy.site.publications import SitePublisher, announcement, size_objections
from motet.deploy.site.table import SiteTable
from motet.deploy.site.training_budget import private_terms, training_objections
from motet.engines.letters import Reply
from motet.errors import MotetError
from motet.runs.build import completed, guards_at_sites, method_of, task_of
from motet.runs.recipe import Recipe, read
from motet.text import aligned

_WIDE = 110  # characters of a line
_PLAIN = {
    "rows": "numbers of training, validation and test rows",
    "masked rows": "numbers of training, validation and test rows, and of rows of classes that all sites have",
    "consent": "that it takes part",
    "saved": "that it was saved; the personal model stays here",
}
_SIDES = {
    "personal": "this site's own model",
    "global": "the global model",
    "alone": "a model trained here alone",
    "held-out": "its stack on held-out rows",
    "pooled": "its stack on all rows",
    "constant": "the best constant",
}
_METRICS = {
    "n": "numbers of rows", "auc": "AUC", "f1": "F1", "ece": "calibration error", "brier": "Brier score",
    "balanced": "balanced accuracy", "pairs": "pairs of rows that AUC compares", "rmse": "RMSE", "mae": "MAE",
    "r2": "R²", "own": "your own metric",
}  # fmt: skip
NAMES = ("names of columns, categories and classes", "how rows are divided")  # which all sites must know
_MANY = 4  # leaves of a reply that are named one by one


@dataclass(frozen=True)
class DryRunReport:
    """What would leave, and what the policy says to it."""

    site: str
    method: str
    net: str
    rounds: int
    needs: list[Need]
    objections: list[str]
    values: list[tuple[str, str]]  # what the handshake would say, in words
    contract: Contract
    kept: list[str]  # what the policy keeps back, in words
    reading: list[str] = field(default_factory=list)  # how the table was read, for the owner's eyes
    published: list[str] = field(default_factory=list)  # models that would leave as they are, in words


def dry_run(
    source: SiteTable,
    policy: Policy | None = None,
    method: str | Recipe = "fedavg",
    spent: tuple[int, int] = (0, 0),
    budget: float = 0.0,
    outbox: Path | None = None,
    ledger: Ledger | None = None,
) -> DryRunReport:
    """A dry run at this site alone, of a recipe or of a method with its usual settings. `spent`: rounds, and losses and
    numbers of sketches, of earlier runs; `budget`: epsilon that was spent in them; `ledger`: of private steps."""
    recipe = method if isinstance(method, Recipe) else read(more={"method": method})
    policy, site, data = policy or Policy(), source.site, recipe["data"]
    source = dataclasses.replace(source, least_category=policy.least_category)
    description = source.describe(policy)
    name = recipe["method"]["name"]
    layout = merge({site: description}, name).layout(data.get("scale", "auto"))
    wrong = sums_refused(policy, layout, description)
    before, layout, values = handshake_needs(source, policy, description, layout)
    federated = source.build_clients(layout)
    whole = completed(recipe, federated)
    made, rounds = method_of(whole, task_of(whole, federated)), recipe.train.rounds
    own = federated.clients_data[site]
    trial = SitePublisher(policy, federated, "", outbox or Path("outbox"), spent=budget)
    made = protected_method(made, own.n, policy).at_site(trial)
    asked = needs_of(made, federated)
    about = whole, made, own, federated.fingerprint(), rounds
    contract, unfit_run = contract_tried(about, asked, policy, spent, ledger)
    wrong = unfit_run + wrong
    models, unfit = would_publish(made, own, trial, site)
    wrong += unfit
    needs = before + answers_to_layout(own, policy) + within_run(asked, policy, whole)
    values += few_rows(own, policy)
    net = whole["net"]["name"]
    return DryRunReport(
        site, name, net, rounds, needs, wrong, values, contract, kept_back(policy), source.notes(), models
    )


def contract_tried(
    about: tuple[Recipe, Method, ClientData, str, int],
    needs: list[Need],
    policy: Policy,
    spent: tuple[int, int],
    ledger: Ledger | None,
) -> tuple[Contract, list[str]]:
    """The contract that a run would have, and why it may not begin."""
    recipe, method, own, rows, rounds = about
    terms, wrong = None, list[str]()
    try:
        terms = private_terms(recipe, method, own, rounds)
        if ledger is not None:
            wrong = [o.text for o in training_objections(policy, ledger, terms, needs, rounds, "")]
    except MotetError as e:
        wrong = [str(e)]
    held = held_by_letters(recipe)
    contract = derive("dry run", held, method, own, rows, rounds, needs, policy, (), terms)
    found = [*objections(contract, method, needs, policy, spent), *loss_objections(method.task, own)]
    return contract, [o.text for o in found] + wrong


def would_publish(
    method: Method, own: ClientData, trial: SitePublisher, site: str
) -> tuple[list[str], list[str]]:
    """The models that would be published, made of all training rows, in words; and why they may not be."""
    wrong = [o.text for o in trial.objections()]
    if trial.choice is None or wrong:
        return [], wrong
    try:
        with single_threaded():
            models = method.public_models(examples(own, 0, site, 0))
    except MotetError as e:
        return [], [str(e)]
    large = [o.text for o in size_objections(trial.policy, models)]
    return [*(announcement([m]) for m in models), *trial.remarks()] or ["nothing"], large


def handshake_needs(
    source: SiteTable, policy: Policy, description: Tree, layout: Layout
) -> tuple[list[Need], Layout, list[tuple[str, str]]]:
    """What the handshake sends, the layout that this site alone would come to, and the values in words."""
    needs = [need("describe", "schema", description)]
    sums = source.measure(layout.kind, policy)
    own = source.own_layout(layout.kind)
    said = policy.sums and (layout.wants_sums or description["holes"])
    if said:
        how = "masked sums of columns" if policy.sums == "masked" else "sums of columns"
        needs.append(need("measure", how, sums.tree()))
    values = described_values(description)
    means = sum_values(sums, own, source.target) if said else []
    values += [(k, f"{v}, in a masked sum") for k, v in means] if policy.sums == "masked" else means
    return needs, pooled(layout, {source.site: own.columns}, {source.site: sums.tree()}), values


def answers_to_layout(own: ClientData, policy: Policy) -> list[Need]:
    """What leaves when a site gets the common layout, and when it is offered a run."""
    rows = {"train": own.n, "val": len(own.val), "test": len(own.test)}
    counted = [need("count", "masked rows", rows)] if policy.counts == "masked" else []
    return [
        need("layout", "rows", rows if policy.counts is True else {}),
        *counted,
        need("offer", "consent", {"accepted": True}),
    ]


def within_run(asked: list[Need], policy: Policy, recipe: Recipe) -> list[Need]:
    """What leaves in a run: replies to verbs, scores if they may leave, and that the personal model was saved."""
    verbs = [n for n in asked if n.learn != "scores"]
    how = "masked scores" if policy.scores == "masked" else "scores"
    scores = [dataclasses.replace(n, learn=how) for n in asked if n.learn == "scores" and policy.scores]
    if recipe.train.after_training:
        scores += [dataclasses.replace(n, verb="evaluate_trained") for n in scores]
    return [*verbs, *scores, need("save_model", "saved", {"saved": True})]


def kept_back(policy: Policy) -> list[str]:
    """What the policy keeps at home that would else leave."""
    names = {"scores": "scores", "sums": "sums of columns", "counts": "numbers of rows"}
    return [f"{words} ({field} = false)" for field, words in names.items() if not getattr(policy, field)]


def need(verb: str, learn: str, tree: Tree) -> Need:
    return Need(verb, learn, tuple(described(tree)), len(Reply(tree).pack()))


def held_by_letters(recipe: Recipe) -> Tree:
    """What letters of a run hold of its recipe."""
    held = {"method": recipe["method"], "net": recipe["net"], "seed": recipe.seed}
    return held | guards_at_sites(recipe)


def sums_refused(policy: Policy, layout: Layout, description: Tree) -> list[str]:
    if policy.sums or not (layout.wants_sums or description["holes"]):
        return []
    return ["this site's policy lets no sums of columns leave (sums = false); hint: data.scale=client"]


# ---- for people ----


def dry_text(report: DryRunReport) -> str:
    """A plain table, and what the policy says."""
    head = ("verb", "the server learns", "bytes", "what leaves")
    rows = [(n.verb, learned(n), f"{n.up:,}" if n.seen else "?", leaving(n)) for n in report.needs]
    lines = aligned([head, *rows], right=[2])
    rule = "-" * min(max(map(len, lines)), _WIDE)
    title = (
        f"what would leave {report.site} with {report.method}, in {report.rounds} rounds; nothing was sent"
    )
    verdict = [f"refused: {why}" for why in report.objections] or ["within this site's policy"]
    values = [
        "values that leave before anything trains:",
        *aligned([("  " + k, v) for k, v in report.values]),
    ]
    read_as = [f"note: {note}" for note in report.reading]
    contract = ["the contract that letters of such a run are held to:", *contract_lines(report.contract)]
    parts = [lines[0], rule, *lines[1:], "", *values, "", *contract, "", *read_as, *notes(report), *verdict]
    return "\n".join([title, "", *parts])


def contract_lines(contract: Contract) -> list[str]:
    """Every term of a contract."""
    terms = {k: v for k, v in asdict(contract).items() if k not in ("run", "asks")}
    rows = [(f"  {name}", in_words(v)) for name, v in terms.items()]
    asks = [
        (f"  may ask {r.ask}", f"{r.learn}; {r.per_round} in a round, {r.in_all} in all" + most(r.numbers))
        for r in contract.asks
    ]
    return aligned([*rows, *asks])


def most(numbers: int) -> str:
    return f", {numbers} numbers at most" if numbers else ""


def in_words(value: Any) -> str:
    if isinstance(value, dict):
        found = (f"{k} {v}" if isinstance(v, str) else f"{k} {v:g}" for k, v in value.items())
        return ", ".join(found) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)
    )


def notes(report: DryRunReport) -> list[str]:
    """What a site's owner should know besides: the server sees each reply before it takes a mean."""
    lines = [f"network: {report.net}; every run is tried here with its own recipe before it starts"]
    if report.kept:
        lines.append(f"stays here: {', '.join(report.kept)}")
    lines += [f"published: {what}" for what in report.published]
    if any(n.learn == "average" for n in report.needs):
        lines += means_explained(report.contract)
    return lines


def means_explained(contract: Contract) -> list[str]:
    """What the server learns of replies that are averaged, and what that rests on."""
    words = {"scores": contract.scores, "numbers of rows": contract.counts}
    shown = [name for name, how in words.items() if how is True]
    if contract.masked:
        return [
            f"means are masked: the server learns sums of at least {contract.min_in_sum} sites and no single reply",
            "assumed: fewer than a third of the sites work together with the server, and the root signs true sites",
            f"not hidden: sums, {', '.join([*shown, *NAMES])}, who takes part and when; all other sites together know "
            "this one's reply",
        ]
    return [
        "the server takes means and sees each reply before: it is trusted not to use single replies",
        "one trained reply of a wide network can hold the table",
    ]


def learned(n: Need) -> str:
    return {
        "average": "a mean (average)",
        "collect": "this site's reply (collect)",
        "schema": "this site's columns",
        "sums of columns": "this site's sums",
        "scores": "this site's scores",
        "masked sums of columns": "sums over sites (masked)",
        "masked scores": "means over sites (masked)",
        "masked rows": "sums over sites (masked)",
        "rows": "this site's rows" if n.leaves else "nothing",
        "consent": "a yes",
        "saved": "a yes",
    }[n.learn]


def leaving(n: Need) -> str:
    if not n.seen:
        return "not seen in the dry run: the method asks for it in other rounds or with other settings"
    if n.learn == "schema":
        counts = ", numbers of rows" if any(name.startswith("counts.") for name, _, _ in n.leaves) else ""
        return f"names and kinds of columns, categories, classes{counts}"
    if not n.leaves:
        return "nothing"
    if n.learn in _PLAIN:
        return _PLAIN[n.learn]
    if n.learn in ("scores", "masked scores"):
        return scores_in_words([name for name, _, _ in n.leaves])
    if len(n.leaves) <= _MANY:
        return ", ".join(f"{name} {shape(s)}{kind}" for name, kind, s in n.leaves)
    total = sum(math.prod(s) for _, _, s in n.leaves)
    first, last = n.leaves[0], n.leaves[-1]
    ends = " … ".join(f"{name} {shape(s)}".strip() for name, _, s in (first, last))
    return f"{len(n.leaves)} arrays, {total:,} numbers: {ends}"


def scores_in_words(names: list[str]) -> str:
    """Which scores leave, and of which models.

    >>> scores_in_words(["global.n", "global.auc", "constant.auc"])
    'numbers of rows, AUC of the global model, the best constant'
    """
    pairs = [name.partition(".") for name in names]
    sides = dict.fromkeys(_SIDES.get(side, side) for side, _, _ in pairs)
    metrics = dict.fromkeys(_METRICS.get(metric, metric) for _, _, metric in pairs)
    return f"{', '.join(metrics)} of {', '.join(sides)}"


def shape(s: tuple[int, ...]) -> str:
    return "×".join(map(str, s)) + " " if s else ""
