"""The course of one run: from its recipe to its last round, checkpoint by checkpoint.

Every decision (best round, stopping) sees validation examples only. A kill at any moment loses at most
what was done since the last checkpoint; going on from there gives the same bits.
Knows rounds, checkpoints and choices. Does not know how results are shown.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from typing import Protocol

import numpy as np
from torch.nn import Module

from motet import nets
from motet.client import ClientData, Task, metrics_of, seed_of
from motet.client.task import better
from motet.core import Client, Method, NoReply, Tree, Turn
from motet.data.federated import FederatedData
from motet.data.load import load
from motet.engines.choose import Choice, choose
from motet.engines.client_state import ClientStates
from motet.engines.driver import play, start, training
from motet.engines.loop import Loop, Part
from motet.engines.mean import ReplyMean, RunningMean
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.hostile import Hostile
from motet.guard.gather import GatheredMean, robust_mean
from motet.guard.robust import check_krum, whole
from motet.nets import initial_weights as stored
from motet.runs.check import fields_of, with_objects
from motet.runs.recipe import GuardSettings, Recipe, RecipeError, Settings, method_class, parse_word
from motet.runs.store import Store
from motet.wire import pack, unpack

_MEMORIES = 60_000  # the most that an agent can remember unless it is told otherwise


class Watch(Protocol):
    """Somebody who looks on."""

    def began(self, trainer: Trainer) -> None: ...
    def ended(self, trainer: Trainer, seconds: float) -> None: ...
    def stop(self) -> bool: ...


@dataclass
class Best:
    """The round to report, as things stand."""

    round: int
    score: float
    state: Tree


def federated_data(recipe: Recipe) -> FederatedData:
    return _federated(json.dumps(recipe["data"], sort_keys=True), recipe.seed)[0]


def fingerprint_of(recipe: Recipe) -> str:
    """Of the data themselves, and of weights that the run starts from: a file may change and keep its name."""
    data = _federated(json.dumps(recipe["data"], sort_keys=True), recipe.seed)[1]
    words = str(recipe["method"].get("extractor", "")).split()
    files = [recipe.weights, *(w.partition("=")[2] for w in words if w.startswith("weights="))]
    digests = [stored.digest(file) for file in files if file]
    return sha256(" ".join([data, *digests]).encode()).hexdigest() if digests else data


def forget_data() -> None:
    """Read data anew when they are next asked for: they may have changed."""
    _federated.cache_clear()


@lru_cache(maxsize=1)
def _federated(data: str, seed: int) -> tuple[FederatedData, str]:
    options = json.loads(data)
    federated = load(options.pop("name"), options, seed)
    return federated, federated.fingerprint()


def task_of(recipe: Recipe, federated: FederatedData) -> Task:
    f = federated

    def build(words: str) -> Module:
        """A net by its name and options, say "vgg11 width=0.5"."""
        name, *rest = words.split()
        options = {k: v for word in rest for k, v in parse_word(word).items()}
        return started(name, options, str(options.pop("weights", "")))

    def started(name: str, options: Settings, weights: str) -> Module:
        net = nets.build(name, options, f.shape, f.outputs, f.kind, recipe.seed)
        net = net.double() if f.exact else net
        return stored.fill(net, weights) if weights else net

    net = started(recipe["net"]["name"], recipe.options("net"), recipe.weights)
    return Task(net, f.kind, f.outputs, f.scale, f.pixels, build)


def method_of(recipe: Recipe, task: Task) -> Method:
    found = method_class(recipe["method"]["name"])
    return found(task, **with_objects(found, recipe.options("method")))


def resolve(recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe with nothing left open, and why its engine was chosen."""
    federated = federated_data(recipe)
    resolved = completed(recipe, federated)
    settings = resolved.settings
    task = task_of(resolved, federated)
    method = method_of(resolved, task)
    most = max(h.n for h in federated.clients_data.values())
    epochs = int(getattr(method, "epochs", 0) or getattr(method, "epochs_max", 1))
    steps = -(-most // getattr(method, "batch", most)) * epochs * recipe.train.rounds
    clients_data = trainees(resolved, federated).clients_data
    e = recipe.engine
    choice = choose(e.name, task, clients_data, steps, e.chunk, e.compile)
    settings["engine"] |= {
        "name": choice.name,
        "chunk": choice.chunk,
        "compile": "yes" if choice.compiled else "no",
    }
    check_guard(resolved, clients_data)
    return resolved, choice.why


def completed(recipe: Recipe, federated: FederatedData) -> Recipe:
    """A copy of the recipe, with what it leaves open: a network that fits these examples, agents' memory."""
    settings = json.loads(json.dumps(recipe.settings))
    if settings["net"]["name"] == "auto":
        symbols = getattr(federated, "symbols", False)
        name = nets.default_net(federated.kind, federated.shape, symbols)
        options = {k: f.check(f.default)[0] for k, f in fields_of(nets.source(name)).items()}
        settings["net"] = {"name": name} | options | {"weights": recipe.weights}
    agent = settings["method"].get("agent", {})
    if (
        isinstance(agent, dict) and agent.get("capacity") == 0
    ):  # its memory holds the whole run, up to a limit
        agent["capacity"] = min(_MEMORIES, recipe.train.rounds)
    return replace(recipe, settings=settings)


def check_guard(recipe: Recipe, clients_data: Mapping[Client, ClientData]) -> None:
    """Refuse, before anything is written, a guard that the cohort is too small for."""
    if recipe.guard.mean == "krum" and recipe["method"]["name"] != "centralised":
        try:
            check_krum(cohort_size(recipe.train.cohort, len(clients_data)), recipe.guard.hostile)
        except NoReply as e:
            raise RecipeError(str(e)) from e


def cohort_size(asked: float, clients: int) -> int:
    """A share of the clients up to 1, or a number of them."""
    return max(1, round(asked * clients)) if asked <= 1 else min(int(asked), clients)


def attackers_of(recipe: Recipe, clients: Iterable[Client]) -> list[Client]:
    """Who is hostile in a rehearsal: a draw that depends on seed and names alone; nobody without an attack."""
    everyone, guard = list(clients), recipe.guard
    if guard.attack == "none" or recipe["method"]["name"] == "centralised":
        return []
    order = sorted(everyone, key=lambda c: seed_of(recipe.seed, "attackers", c))
    return sorted(order[: whole(guard.attackers, len(everyone))])


def trainees(recipe: Recipe, federated: FederatedData) -> FederatedData:
    """Who trains: the clients, or one that holds all their rows."""
    return federated.pooled() if recipe["method"]["name"] == "centralised" else federated


def mean_of(guard: GuardSettings) -> Callable[[], ReplyMean]:
    """What makes a mean of replies, as the recipe has it."""
    if guard.mean == "mean":
        return RunningMean
    robust = robust_mean(guard.mean, guard.trim, guard.hostile, guard.chosen, guard.mix)
    return partial(GatheredMean, robust)


class Trainer:
    """One run, on its way. `afar` is an engine whose clients, and their examples, are elsewhere; then
    `federation` says what is known of them here."""

    def __init__(
        self, recipe: Recipe, store: Store, federated: FederatedData | None = None, afar: Loop | None = None
    ) -> None:
        self.recipe, self.store = recipe, store
        self.federated = federated or federated_data(recipe)
        self.task = task_of(recipe, self.federated)
        self.method = method_of(recipe, self.task)
        e = recipe.engine
        self.choice = Choice(e.name, e.chunk, e.compile == "yes")
        self.keeps = ClientStates(store.db, on_disk=e.keep == "disk")
        training = trainees(recipe, self.federated)
        pooled = training is not self.federated
        clients = afar or self.choice.build(training.clients_data, self.keeps, e.workers)
        clients.keeps = self.keeps
        if not pooled:
            clients.fold = mean_of(recipe.guard)
        attackers, how = attackers_of(recipe, clients.clients), recipe.guard.attack
        self.engine = Counted(Hostile(clients, attackers, how) if attackers and how != "none" else clients)
        self.bench = self.choice.build(self.federated.clients_data, workers=e.workers) if pooled else clients
        self.proxy = self.federated.proxy and self.federated.proxy.take()
        self.state: Tree = ()
        self.number = -2  # the last round that ended; -1 is the start
        self.best: Best | None = None
        self.peaks: dict[str, float] = {}  # the highest validation scores so far, by side
        self.risen = -1  # the last round with a new one
        self.latest: dict[str, float] = {}  # mean validation scores, by side
        self.refusals: list[str] = []  # replies that were left out since the run started or went on
        self.next_save = 0.0

    # ---- going ----

    def go(self, watch: Watch) -> None:
        """Train to the end, or until somebody says stop."""
        self.load()
        watch.began(self)
        if self.number == -2:
            self.state, self.number = start(self.engine, self.method, self.turn(-1)), -1
            self.engine.take()
            self.write_events(())
            self.save()
        while not self.over() and not watch.stop():
            began = time.perf_counter()
            before = self.state
            self.state = play(self.engine, self.method, before, self.turn(self.number + 1))
            self.number += 1
            t, ended = self.recipe.train, self.number + 1
            if ended % t.evaluate == 0 or ended == t.rounds:
                self.evaluate()
                if t.after_training:
                    self.score_after_training(before)
            seconds = time.perf_counter() - began
            self.store.ended(self.number, seconds, self.engine.take())
            self.store.add_metrics(self.number, self.method.metrics(self.state))
            self.write_events(before)
            if time.monotonic() >= self.next_save:
                self.save()
            watch.ended(self, seconds)
        self.save()

    def over(self) -> bool:
        return self.number + 1 >= self.recipe.train.rounds or self.stuck()

    def stuck(self) -> bool:
        """Whether no side that counts has improved on validation examples for as long as patience lasts."""
        patience = self.recipe.train.patience
        return bool(self.peaks) and patience > 0 and self.number - self.risen >= patience

    def turn(self, number: int) -> Turn:
        clients = self.engine.clients
        return Turn(
            number,
            self.cohort(number),
            clients,
            seed_of(self.recipe.seed, "turn", number),
            self.proxy,
        )

    def cohort(self, number: int) -> list[str]:
        """Who takes part: a draw that depends on seed, round and name alone."""
        clients, asked = list(self.engine.clients), self.recipe.train.cohort
        many = cohort_size(asked, len(clients))
        if many == len(clients):
            return clients
        return sorted(sorted(clients, key=lambda c: seed_of(self.recipe.seed, "cohort", number, c))[:many])

    def write_events(self, before: Tree) -> None:
        """What the engine left out in a round, and what the method says of it."""
        self.write_refusals(self.engine.refused)
        if said := self.method.log(before, self.state):
            self.store.event("note", f"round {self.number}: {said}")

    def write_refusals(self, refused: list[tuple[Client, str, int]]) -> None:
        """Every reply that an engine left out is an event of the run."""
        for client, verb, number in refused:
            text = f"round {number}: the reply of client {client} to {verb} is not finite; left out"
            self.store.event("refused", text)
            self.refusals.append(text)
        refused.clear()

    # ---- choosing ----

    def evaluate(self) -> None:
        """Score everyone on validation examples, and see whether this is the best round so far."""
        self.latest = self.score(self.bench, self.state, self.turn(self.number), "val")
        by, sign = self.recipe.train.by, better(self.task.kind)
        scores = {k: v * sign for k, v in self.latest.items() if k == by or by == "both"}
        if not scores:
            return
        if any(v > self.peaks.get(k, -math.inf) for k, v in scores.items()):
            self.risen = self.number
        self.peaks = {k: max(v, self.peaks.get(k, v)) for k, v in scores.items()}
        score = sum(scores.values()) / len(scores)
        if self.best is None or score > self.best.score:
            self.best = Best(self.number, score, self.state)
            self.keeps.mark_best()

    def score_after_training(self, before: Tree) -> None:
        """Score the models that left clients in this round. Their test scores are written down for the
        round that would be reported, and replace those of the one before; nothing else looks at them."""
        turn = self.turn(self.number)
        asks = training(self.method, before, turn)
        if not asks or self.bench is not self.engine.engine:
            return
        clients, sums = self.bench.evaluate_trained(self.method, asks, turn)
        self.latest |= self.write(clients, sums["val"], turn.number, "val", "after_training")
        if self.reported().round == self.number:
            self.store.forget_scores("test", "after_training")
            self.write(clients, sums["test"], turn.number, "test", "after_training")

    def score(
        self, engine: Loop, state: Tree, turn: Turn, part: Part, sides: dict[str, str] | None = None
    ) -> dict[str, float]:
        """Write down everyone's scores under `sides` (all of them by default); return their means."""
        clients, sums = engine.evaluate(self.method, state, turn, part)
        means: dict[str, float] = {}
        for side, label in (sides or {s: s for s in sums}).items():
            if side in sums:
                means |= self.write(clients, sums[side], turn.number, part, label)
        return means

    def write(self, clients: list[str], sums: Tree, number: int, part: Part, label: str) -> dict[str, float]:
        """Write down scores of the clients that have examples of this part; return their mean by label."""
        n = sums["n"].long().numpy()
        some = np.flatnonzero(n)
        if not len(some):
            return {}
        scores = {k: v[some] for k, v in metrics_of(self.task.kind, sums).items()}
        names = [clients[i] for i in some]
        self.store.scored(number, part, label, names, n[some].tolist(), scores)
        return {label: float(next(iter(scores.values())).mean())}

    def reported(self) -> Best:
        """The round whose models count."""
        if self.recipe.train.report == "best" and self.best is not None:
            return self.best
        return Best(self.number, 0.0, self.state)

    # ---- checkpoints ----

    def save(self) -> None:
        """All of the rounds so far, in one transaction."""
        began, b = time.monotonic(), self.best

        def state(number: int) -> bytes:
            return pack(self.state if number == self.number or b is None else b.state)

        best, score = (b.round, b.score) if b else (None, None)
        self.store.checkpoint(self.number, best, score, state)
        self.store.set_facts(peaks=self.peaks, risen=self.risen)
        self.keeps.write(self.number)
        self.store.commit()
        now = time.monotonic()
        # What takes long to save is saved less often: at most a thirtieth of the time goes into it.
        self.next_save = now + max(
            self.recipe.save.checkpoint, 30 * (now - began) if self.recipe.save.checkpoint else 0
        )

    def load(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        if (saved := self.store.saved()) is None:
            return
        self.number, best, score = saved
        self.state = unpack(self.store.state(self.number))
        if best is not None and score is not None:
            self.best = Best(best, score, unpack(self.store.state(best)))
            self.keeps.best = best
            facts = self.store.facts()  # a run of an earlier version went by one side
            self.peaks = facts.get("peaks", {self.recipe.train.by: score})
            self.risen = facts.get("risen", best)
        self.store.rewind(self.number)
        self.keeps.rewind(self.number)

    def give_up_round(self) -> None:
        """Forget what the round that was interrupted has done so far, and save the rounds before it."""
        self.engine.take()
        self.engine.refused.clear()
        self.keeps.rewind(self.number)
        if self.number >= -1:
            self.save()
