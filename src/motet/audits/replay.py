"""A finished run, played again bit by bit, so that something can be measured on the way.

    opened = open_run("runs/digits-fedavg-seed0-1a2b3c4d")
    with replaying(opened.resolved) as trainer:
        trainer.run(observer)

The replay lies in a folder that is gone afterwards; the run itself is only read.
Knows runs, recipes and trainers. Does not know what is measured.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from motet.client.population import MANY
from motet.client.visit import single_threaded
from motet.core import Client, Engine, Tree
from motet.engines.loop import Loop
from motet.engines.wrappers.wrapper import Wrapper
from motet.errors import RunError
from motet.runs.build import Resolved, as_asked, attackers_of, resolve
from motet.runs.example_privacy import Budget
from motet.runs.identity import changes
from motet.runs.recipe import Recipe
from motet.runs.run import Run, begin
from motet.runs.run_folder import locked, writable
from motet.runs.store import FILE, Store
from motet.runs.trainer import Observer, Trainer
from motet.trusted_code import Consent, require_trust
from motet.wire import pack

log = logging.getLogger("motet")
Say = Callable[[str], None]


@dataclass(frozen=True)
class OpenedRun:
    """A finished run, and all that is needed to play it again."""

    folder: Path
    facts: dict[str, Any]
    resolved: Resolved
    remarks: tuple[str, ...] = ()  # what differs from when it ran: code, data, versions

    @property
    def clients(self) -> Sequence[Client]:
        return sorted(self.resolved.training.clients_data)


def open_run(folder: str | Path, trust: Consent = False, say: Say = log.warning) -> OpenedRun:
    """Read a run that can be played again here, or say why it cannot."""
    folder = Path(folder)
    facts = checked_facts(folder)
    require_trust(facts["settings"], folder, trust)
    resolved = as_asked(resolve(Recipe(in_this_process(facts["settings"]))), facts)
    if resolved.pooled:
        raise RunError(
            f"{folder} is a run of {facts['method']}, in which all rows are one client's: there is nobody to compare"
        )
    if len(resolved.training.clients_data) >= MANY:
        raise RunError(
            f"{folder} has {len(resolved.training.clients_data):,} clients; at most {MANY:,} fit here"
        )
    found = tuple(changes(facts, resolved.recipe, resolved.pieces)) if not on_ray(facts["settings"]) else ()
    for line in found:
        say(f"{folder}: {line}")
    return OpenedRun(folder, facts, resolved, found)


def checked_facts(folder: Path) -> dict[str, Any]:
    """The facts of a run that is finished, sound, and whose rows are here."""
    if not (folder / FILE).exists() and (inside := sorted(p.parent for p in folder.glob(f"*/{FILE}"))):
        raise RunError(f"{folder} holds {len(inside)} runs; give one of them\nhint: {inside[0]}")
    Run(folder)  # says so if the folder is no run
    with closing(Store(folder)) as store:
        store.check()
        facts = store.facts()
    status = facts.get("status", "running")
    if status == "failed":
        raise RunError(f"{folder} failed, and a failed run has no models: {facts.get('failure')}")
    if status != "done" or "settings" not in facts:
        raise RunError(f"{folder} is not finished\nhint: motet run {folder / 'recipe.toml'} --out {folder}")
    if facts.get("federation"):
        raise RunError(
            f"{folder} was run by the sites of {facts['federation']}, whose rows are with them: it cannot be played "
            "again here\nhint: simulate it with rows of your own, or with a public data set of the same kind"
        )
    return facts


def on_ray(settings: Mapping[str, Any]) -> bool:
    return bool(settings["engine"]["name"] == "ray")


def in_this_process(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings; clients of a cluster are simulated here, by the engine that its processes had."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    if on_ray(found):
        found["engine"]["name"] = found["engine"].get("inner") or "auto"
    return found


@contextmanager
def replaying(resolved: Resolved) -> Iterator[Trainer]:
    """A trainer of this run in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as scratch, single_threaded():
        store = Store(Path(scratch), writing=True)
        try:
            begin(resolved, store, Path(scratch))
            yield Trainer(resolved, store)
        finally:
            store.close()


def without(resolved: Resolved, client: Client) -> Resolved:
    """The same run without a client; all else, learning rates, scaling and who attacks too, stays as it was. Means are
    plain where they were masked: masks change nothing but rounding, and refuse sums of few."""
    everyone = resolved.federated.clients_data
    kept = {c: d for c, d in everyone.items() if c != client}
    fewer = replace(resolved.federated, clients_data=kept)
    attackers = [c for c in attackers_of(resolved.recipe, everyone) if c != client]
    settings, budget = resolved.recipe.settings, resolved.budget
    recipe = Recipe(settings | {"guard": settings["guard"] | {"masked": False}})
    budget = replace(budget, least=1) if isinstance(budget, Budget) else budget
    return replace(
        resolved, recipe=recipe, federated=fewer, training=fewer, attackers=attackers, budget=budget
    )


def innermost(engine: Engine) -> Loop:
    """The engine that has the clients, inside of wrappers."""
    while isinstance(engine, Wrapper):
        engine = engine.engine
    assert isinstance(engine, Loop)
    return engine


def is_same(opened: OpenedRun, trainer: Trainer) -> bool:
    """Whether a replay that ended has the very state that the run had."""
    with closing(Store(opened.folder)) as store:
        saved = store.saved()
        return (
            saved is not None and saved[0] == trainer.number and store.state(saved[0]) == pack(trainer.state)
        )


class EachRound(Observer):
    """An observer that calls a function after each round, with the server's state before it."""

    def __init__(self, f: Callable[[Trainer, Tree], None], then: Observer | None = None) -> None:
        self.f, self.then = f, then
        self.trainer: Trainer | None = None
        self.before: Tree = ()

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer
        if self.then:
            self.then.on_start(trainer)

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.f(trainer, self.before)
        if self.then:
            self.then.on_round(trainer, seconds)

    def should_stop(self) -> bool:
        self.before = self.trainer.state if self.trainer else ()  # it is asked before every round
        return bool(self.then and self.then.should_stop())


def keep_fact(folder: Path, name: str, found: Mapping[str, Any], what: str) -> None:
    """Write what was measured into the run's folder, where reports find it."""
    with writable(folder), locked(folder), closing(Store(folder, writing=True)) as store:
        store.set_facts(**{name: dict(found)})
        store.event(name, what)
        store.commit()
