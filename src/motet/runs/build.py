"""From a recipe to objects: the data, the network, the method and the engine that it describes.

`resolve` does it once for a run, and fills in what the recipe leaves open. Data that were read last are
remembered, because the runs of a comparison share them.
Knows recipes and how things are found by name. Does not train.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch.nn import Module

from motet import nets
from motet.client import ClientData, Task, seed_of
from motet.client.data import hashes
from motet.client.population import MANY, names_of, rows_of
from motet.client.visit import single_threaded
from motet.core import AT_HOME, Client, Method, NoReply
from motet.data.federated import FederatedData
from motet.data.load import load
from motet.data.survey import worth_knowing
from motet.engines.choose import Choice, choose
from motet.engines.mean import ReplyMean, RunningMean
from motet.guard.gather import GatheredMean, robust_mean
from motet.guard.pairs.chain import Chain, Guard
from motet.guard.pairs.clip import Clip
from motet.guard.pairs.compress import Compress
from motet.guard.robust import check_krum, whole
from motet.nets import initial_weights, pretrained
from motet.runs.choose_loss import check_loss, check_row_weights, chosen_loss, criterion_of
from motet.runs.choose_metric import Counts, check_own, chosen_metric, own_metric
from motet.runs.client_privacy import ClientLevelBudget, check_one_mean, client_level_budget
from motet.runs.evaluation_interval import rounds_between, steps_in_round
from motet.runs.example_privacy import (
    Budget,
    check_coverage,
    check_few_clients,
    check_network,
    example_budget,
)
from motet.runs.identity import Pieces, pieces_of
from motet.runs.method_asks import check_guards
from motet.runs.rates import epochs_for, open_epochs, open_rates, rates_for, typed
from motet.runs.recipe import OF_ANY_NET, Recipe, RecipeError, Settings, method_class, parse_word
from motet.runs.sections import GUARDS_AT_SITES, OF_LEDGER, GuardSettings
from motet.settings import AUTO, fields_of, with_objects

Who = Mapping[Client, ClientData] | Sequence[Client]
SCORED = 1000  # clients of a population that are scored, where the recipe does not say how many
_ROUNDS_COUNTED = 20  # whose cohorts say how many steps a run takes
_MEMORIES = 60_000  # largest replay memory of an agent whose recipe leaves it open


@dataclass(frozen=True)
class Resolved:
    """A recipe with nothing left open, and the objects that it describes: all that a run starts from."""

    recipe: Recipe
    federated: FederatedData  # every client's data, or what a server knows of clients elsewhere
    training: FederatedData  # who trains: the same clients, or one that holds all their rows
    task: Task
    method: Method
    choice: Choice  # of the engine, and why
    fingerprint: str = ""  # of the data, and of weights that the run starts from
    pieces: Pieces = field(default_factory=dict)  # of its identity
    metric_why: str = ""  # why the run goes by its metric; "" if it was given
    asked: Settings = field(default_factory=dict)  # the settings before what was open in them was filled in
    budget: Budget | ClientLevelBudget | None = None  # of private training
    attackers: Sequence[Client] | None = None  # who attacks; None: as the recipe draws them

    @property
    def pooled(self) -> bool:
        return self.training is not self.federated


def resolve(recipe: Recipe) -> Resolved:
    """Fill in what the recipe leaves open, and build what it describes."""
    federated, rows = _read(recipe)
    federated = replace(federated, notes=[*federated.notes, *_worth_knowing(_key_of(recipe))])
    with single_threaded():  # as in training, so that initial weights are the same bits everywhere
        found = build(*completed_with_task(recipe, federated))
        choice = choose_engine(found)
    settings = found.recipe.settings
    compiled = "yes" if choice.compiled else "no"
    settings["engine"] |= {
        "name": choice.name, "chunk": choice.chunk, "compile": compiled, "device": choice.device
    } | ({"inner": choice.inner} if choice.inner else {})  # fmt: skip
    settings["train"]["evaluate"] = found.recipe.train.evaluate or evaluation_interval(found)
    check_guard(found.recipe, found.training.clients_data)
    check_row_weights(found.task, found.method, federated.clients_data)
    check_own(found.task, federated.clients_data)
    check_loss(found.task, found.method, federated.clients_data)
    found = with_privacy(found)
    why = chosen_metric(recipe, federated)[1]
    fingerprint = fingerprint_of(found.recipe, rows)
    pieces = pieces_of(found.recipe, fingerprint)
    return replace(
        found, choice=choice, fingerprint=fingerprint, pieces=pieces, metric_why=why, asked=recipe.settings
    )


def as_asked(resolved: Resolved, facts: Mapping[str, Any]) -> Resolved:
    """A run that is done again from its settings, with what was open in them: rates that motet chose may be halved."""
    return replace(resolved, asked=facts.get("asked", resolved.asked))


def build(recipe: Recipe, federated: FederatedData, task: Task | None = None) -> Resolved:
    """What a recipe describes that leaves nothing open, on these data; its task may be built already."""
    task = task or task_of(recipe, federated)
    method, e = method_of(recipe, task).in_simulation(federated), recipe.engine
    inner = e.inner if e.name == "ray" else ""
    choice = Choice(e.name, e.chunk, e.compile == "yes", device=e.device, inner=inner)
    trainees = federated.pooled() if recipe["method"]["name"] == "centralised" else federated
    return Resolved(recipe, federated, trainees, task, method, choice)


def choose_engine(found: Resolved) -> Choice:
    """The engine that the recipe names, or one that suits the network and the length of the run."""
    method, e, rounds = found.method, found.recipe.engine, found.recipe.train.rounds
    clients, steps = found.training.clients_data, partial(batched_steps, found)
    # private steps are compiled by inductor, which takes a minute: only if somebody asks for it
    compiled = "no" if found.recipe.privacy.level == "example" and e.compile == "auto" else e.compile
    return choose(
        e.name, found.task, clients, steps, e.chunk, compiled, method, rounds, e.device, e.workers, e.inner
    )


def batched_steps(found: Resolved, chunk: int) -> int:
    """How many batched steps the run takes with so many clients in a chunk, if it takes all its rounds: those of the
    largest client in each chunk of each round's cohort. Some rounds are counted, and stand for all."""
    clients, rounds = found.training.clients_data, found.recipe.train.rounds
    counted = range(0, rounds, -(-rounds // _ROUNDS_COUNTED))
    steps = 0
    for number in counted:
        sizes = sorted(rows_of(clients, c) for c in cohort_of(found.recipe, clients, number))
        # chunks are cut from the smallest client up, as the engine does
        chunks = (sizes[first : first + chunk] for first in range(0, len(sizes), chunk))
        steps += sum(steps_in_round(found.method, part[-1]) for part in chunks)
    return round(steps * rounds / len(counted))


def evaluation_interval(found: Resolved) -> int:
    """Rounds between two evaluations. Of clients that are pooled into one, all train."""
    clients, train = found.federated.clients_data, found.recipe.train
    many = len(clients) if found.pooled else cohort_size(train.cohort, len(clients))
    share = len(scored_of(found.recipe, clients)) / len(clients)
    return rounds_between(train, found.method, clients, many, share)


def with_privacy(found: Resolved) -> Resolved:
    """The same with private training, if the recipe asks for it: its budgets, and examples that carry the noise."""
    settings, clients_data = found.recipe.privacy, found.training.clients_data
    if not settings.on:
        return found
    if settings.level == "client":
        return replace(found, budget=whole_clients_budget(found))
    check_few_clients(clients_data)
    check_coverage(found.method, found.recipe["method"]["name"])
    check_network(found.method, clients_data)
    cohorts = [cohort_of(found.recipe, clients_data, k) for k in range(found.recipe.train.rounds)]
    rows, guard = {c: d.n for c, d in clients_data.items()}, found.recipe.guard
    least = guard.min_in_sum if guard.masked and not found.pooled else 1
    budget = example_budget(settings, found.method, rows, cohorts, least)
    protected = {c: budget.protected(c, d) for c, d in clients_data.items()}
    training = replace(found.training, clients_data=protected)
    federated = found.federated if found.pooled else training
    return replace(found, federated=federated, training=training, budget=budget)


def whole_clients_budget(found: Resolved) -> ClientLevelBudget:
    recipe, everyone = found.recipe, found.training.clients_data
    if found.pooled:
        raise RecipeError(
            "privacy.level is client, and centralised has one client\nhint: privacy.level=example"
        )
    check_one_mean(found.method, recipe["method"]["name"], recipe.privacy.sampling)
    cohorts = [cohort_of(recipe, everyone, k) for k in range(recipe.train.rounds)]
    share = recipe.train.cohort
    many = share * len(everyone) if share <= 1 else min(share, len(everyone))
    if recipe.privacy.sampling == "fixed":
        many = cohort_size(share, len(everyone))
    return client_level_budget(recipe.privacy, len(everyone), many, cohorts)


# ---- data ----


def federated_data(recipe: Recipe) -> FederatedData:
    return _read(recipe)[0]


def fingerprint_of(recipe: Recipe, data: str) -> str:
    """Of the data, whose own is `data`, and of weights to start from: a file may change and keep its name."""
    words = str(recipe["method"].get("extractor", "")).split()
    files = [recipe.weights, *(w.partition("=")[2] for w in words if w.startswith("weights="))]
    digests = [initial_weights.digest(file) for file in files if file]
    if pretrained.is_pretrained(net := str(recipe["net"]["name"])):
        digests.append(pretrained.digest(net))
    return sha256(" ".join([data, *digests]).encode()).hexdigest() if digests else data


def forget_data() -> None:
    """Read data again when they are next needed: files may have changed."""
    _federated.cache_clear()
    _worth_knowing.cache_clear()


def _read(recipe: Recipe) -> tuple[FederatedData, str]:
    return _federated(_key_of(recipe))


def _key_of(recipe: Recipe) -> str:
    return json.dumps(recipe["data"], sort_keys=True)


@lru_cache(maxsize=1)
def _federated(data: str) -> tuple[FederatedData, str]:
    options = json.loads(data)
    federated = load(options.pop("name"), options)
    return federated, federated.fingerprint()


@lru_cache(maxsize=1)
def _worth_knowing(data: str) -> list[str]:
    return worth_knowing(_federated(data)[0])


# ---- network and method ----


def task_of(recipe: Recipe, federated: FederatedData) -> Task:
    f = federated
    form, exact = (f.shape, f.outputs, f.kind), f.exact  # not the rows: a task may be sent to other processes

    def network(words: str) -> Module:
        """A net by its name and options, say "vgg11 width=0.5"."""
        name, *rest = words.split()
        options = {k: v for word in rest for k, v in parse_word(word).items()}
        return started(name, options, str(options.pop("weights", "")))

    def started(name: str, options: Settings, weights: str) -> Module:
        net = nets.build(name, options, *form, recipe.seed)
        net = net.double() if exact else net
        return initial_weights.fill(net, weights) if weights else net

    net = started(recipe["net"]["name"], recipe.options("net"), recipe.weights)
    own = own_metric(recipe.train.metric, recipe)
    loss = criterion_of(recipe, f)
    return Task(net, f.kind, f.outputs, f.scale, f.pixels, network, f.offset, own, loss)


def method_of(recipe: Recipe, task: Task) -> Method:
    found = method_class(recipe["method"]["name"])
    method = found(task, **with_objects(found, recipe.options("method")))
    method.check()
    check_guards(method, recipe.guard)
    return method


def completed(recipe: Recipe, federated: FederatedData, counts: Counts | None = None) -> Recipe:
    """A copy of the recipe with nothing left open that depends on the data: the network, learning rates, the metric,
    who is held out, the size of agents' replay memory; `counts` as in `chosen_metric`."""
    return completed_with_task(recipe, federated, counts)[0]


def completed_with_task(
    recipe: Recipe, federated: FederatedData, counts: Counts | None = None
) -> tuple[Recipe, FederatedData, Task]:
    whole = completed_but_rates(recipe, federated, counts)
    task = task_of(whole, federated)
    return with_rates(whole, federated, task), federated, task


def completed_but_rates(recipe: Recipe, federated: FederatedData, counts: Counts | None = None) -> Recipe:
    settings = json.loads(json.dumps(recipe.settings))
    settings["net"] |= chosen_loss(recipe, federated, counts)
    settings["train"]["metric"] = chosen_metric(recipe, federated, counts)[0]
    if not federated.clients_data:  # their rows are elsewhere and cannot be counted
        settings["train"]["evaluate"] = recipe.train.evaluate or 1
    if settings["data"].get("unseen") == "auto":
        settings["data"]["unseen"] = federated.unseen_share
    if settings["net"]["name"] == "auto":
        few = method_class(settings["method"]["name"]).few_weights
        text = "words" if federated.codes else "symbols" if federated.symbols else ""
        name = nets.default_net(federated.kind, federated.shape, text, few)
        options = {k: f.check(f.default)[0] for k, f in fields_of(nets.source(name)).items()}
        common = {k: v for k, v in settings["net"].items() if k in OF_ANY_NET}
        settings["net"] = {"name": name} | options | common
    if federated.codes and settings["net"].get("symbols") == 0:
        settings["net"] |= {"symbols": federated.codes} | (
            {"padding": 0} if "padding" in settings["net"] else {}
        )
    schedule = settings["method"].get("schedule")
    if isinstance(schedule, dict) and (schedule["warm_up"] or schedule["kind"] != "constant"):
        schedule["over"] = schedule["over"] or recipe.train.rounds  # by default the whole run
    agent = settings["method"].get("agent", {})
    if isinstance(agent, dict) and agent.get("capacity") == 0:  # by default it holds the whole run
        agent["capacity"] = min(_MEMORIES, recipe.train.rounds)
    return replace(recipe, settings=settings)


def with_rates(recipe: Recipe, federated: FederatedData, task: Task) -> Recipe:
    """The recipe with a number for every learning rate and number of epochs that it leaves open."""
    found, settings = method_class(recipe["method"]["name"]), dict(recipe["method"])
    settings |= found.filled(settings)
    recipe = replace(recipe, settings=recipe.settings | {"method": settings})
    rates, epochs = open_rates(found, settings), open_epochs(found, settings)
    at_home = [k for k, args in typed(found, float).items() if AT_HOME in args and AUTO in args]
    left_open = {*rates, *epochs, *(k for k in at_home if settings.get(k) == AUTO)}
    if not left_open:
        return recipe
    usual = {k: v for k, v in recipe.options("method").items() if k not in left_open}
    method = found(task, **with_objects(found, usual))
    if recipe.privacy.on:  # what is measured on rows would be no part of the budget
        federated = replace(federated, clients_data={})
    rate, with_pulls = rates_for(method, task, federated) if rates else (1.0, 1.0)
    rate = rate if at_home else with_pulls  # one rate for all trainings is safe for all
    settings |= {k: float(f"{share * rate:.2g}") for k, share in rates.items()}
    settings |= {k: float(f"{with_pulls / rate:.2g}") for k in at_home if k in left_open}
    settings |= dict.fromkeys(epochs, epochs_for(method, federated) if epochs else 1)
    return replace(recipe, settings=recipe.settings | {"method": settings})


# ---- clients and what guards them ----


def check_guard(recipe: Recipe, clients_data: Mapping[Client, ClientData]) -> None:
    """Refuse, before anything is written, a robust mean or a masked sum that needs a larger cohort."""
    guard, many = recipe.guard, cohort_size(recipe.train.cohort, len(clients_data))
    if recipe["method"]["name"] == "centralised":
        return
    if guard.masked and many < guard.min_in_sum:
        raise RecipeError(
            f"guard.masked is true, a round has {many} clients, and guard.min_in_sum is {guard.min_in_sum}: there "
            f"would be no sum\nhint: train.cohort={guard.min_in_sum}, or more clients"
        )
    if guard.mean == "krum":
        try:
            check_krum(many, guard.hostile)
        except NoReply as e:
            raise RecipeError(str(e)) from e


def cohort_size(asked: float, clients: int) -> int:
    """A share of the clients up to 1, or a number of them."""
    return max(1, round(asked * clients)) if asked <= 1 else min(int(asked), clients)


def cohort_of(recipe: Recipe, clients: Who, number: int, again: int = 0) -> Sequence[Client]:
    """Who takes part in a round. A secret draw is another one where the round is done `again`."""
    everyone, share = names_of(clients), recipe.train.cohort
    if recipe.privacy.level == "client" and recipe.privacy.sampling == "poisson":
        rate = share if share <= 1 else share / len(everyone)
        words = ("poisson", number, again) if again else ("poisson", number)
        key = hashes(torch.tensor(seed_of(recipe.seed, *words)), 0, torch.arange(len(everyone)))
        return [everyone[i] for i in (key < int(rate * 2**62)).nonzero()[:, 0].tolist()]
    return drawn(everyone, cohort_size(share, len(everyone)), recipe.seed, "cohort", number)


def scored_of(recipe: Recipe, clients: Who) -> Sequence[Client]:
    """Whose models are scored: everyone, or a draw that stays the same through a run."""
    everyone = names_of(clients)
    asked = recipe.train.evaluate_clients or (SCORED if len(everyone) >= MANY else len(everyone))
    return drawn(everyone, min(asked, len(everyone)), recipe.seed, "scored")


def attackers_of(recipe: Recipe, clients: Who) -> Sequence[Client]:
    """Who attacks; nobody without an attack."""
    everyone, guard = names_of(clients), recipe.guard
    if guard.attack == "none" or recipe["method"]["name"] == "centralised":
        return []
    return drawn(everyone, whole(guard.attackers, len(everyone)), recipe.seed, "attackers")


def drawn(everyone: Sequence[Client], many: int, *words: object) -> Sequence[Client]:
    """So many of the clients, in the order of names: a draw without replacement, in which all are equally likely.

    It depends on the words and on names alone; of very many clients, on their places in the order of names.
    """
    if many == len(everyone):
        return everyone
    if len(everyone) < MANY:
        return sorted(sorted(everyone, key=lambda c: seed_of(*words, c))[:many])
    key = hashes(torch.tensor(seed_of(*words)), 0, torch.arange(len(everyone))).numpy()
    return [everyone[i] for i in np.sort(np.argpartition(key, many)[:many]).tolist()]


def chain_of(guard: GuardSettings) -> Chain | None:
    """The guards that replies leave through; None if there are none."""
    guards: list[Guard] = [Clip(guard.clip)] if guard.clip else []
    if guard.compresses:
        guards.append(Compress(guard.bits, guard.top))
    return Chain(tuple(guards)) if guards else None


def guards_at_sites(recipe: Recipe) -> dict[str, Any]:
    """What letters to sites hold of a recipe's guards; nothing where replies leave as they are."""
    asked = {k: v for k, v in recipe["privacy"].items() if k not in OF_LEDGER}
    private = {"privacy": asked} if recipe.privacy.on else {}
    if not recipe.guard.masked and chain_of(recipe.guard) is None:
        return private
    return {"guard": {k: getattr(recipe.guard, k) for k in GUARDS_AT_SITES}} | private


def mean_of(guard: GuardSettings) -> Callable[[], ReplyMean]:
    """The aggregation that the recipe asks for."""
    if guard.masked:
        from motet.guard.masks.in_process import MaskedMean

        return partial(MaskedMean, guard.mask_bits, guard.mask_range, guard.min_in_sum)
    if guard.mean == "mean":
        return RunningMean
    robust = robust_mean(guard.mean, guard.trim, guard.hostile, guard.chosen, guard.mix)
    return partial(GatheredMean, robust)
