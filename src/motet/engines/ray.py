"""The ray engine: clients live in actors of a Ray cluster that belongs to one owner.

Clients come in shards, which follow from the clients and the size of a chunk alone. The results of shards are
used in a fixed order, so the number of actors changes no bit, and neither does the loss of one. What clients keep is
stored here as each shard answers, and checkpointed with the run; actors remember it too, so that it is not sent again.
Knows shards and what to ask of them. Does not know what any verb does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from motet.client import ClientData
from motet.client.population import rows_of as training_rows
from motet.client.visit import name_of
from motet.core import Ask, Client, Part, Tree, Turn, Verb, is_solo
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.mean import RunningMean
from motet.engines.owned_objects import Packed, packed
from motet.engines.ray_crew import Crew
from motet.engines.ray_work import Label, Letters, Order, Result, ShardName, VerbJob
from motet.engines.vmap import Vmap
from motet.text import round_name
from motet.vec import unstack

_SHARDS = 64  # at least so many, where there are as many clients that are visited one by one
_TOGETHER = 16  # clients of such a shard, at most
_names = itertools.count()


class Ray(Loop):
    """A Loop whose clients are visited by actors, one by one."""

    name = "ray"
    stacks_shards = False
    crew: Crew

    def __init__(
        self, clients_data: Mapping[Client, ClientData], crew: Crew, keeps: ClientStates | None = None
    ) -> None:
        super().__init__(clients_data, keeps)
        many = len(self.clients)
        self.assign(crew, self.clients, min(_TOGETHER, max(1, -(-many // _SHARDS))))

    def assign(self, crew: Crew, order: Sequence[Client], together: int) -> None:
        """Assign clients to actors, so many to a shard."""
        self.crew, self.key, self.jobs = crew, f"engine {next(_names)}", itertools.count()
        self.together = together
        self.shards = [order[first : first + together] for first in range(0, len(order), together)]
        self.there: dict[Client, tuple[int, int, Tree]] = {}  # which actor remembers what a client keeps
        loads = [sum(training_rows(self.clients_data, c) for c in some) + len(some) for some in self.shards]
        for place in sorted(range(len(loads)), key=lambda p: -loads[p]):
            crew.add((self.key, place), partial(rows_of, self.clients_data, self.shards[place]), loads[place])

    # ---- asks ----

    def mean(self, ask: Ask) -> Tree:
        if self.fold is not RunningMean or self.guards(ask):
            return Loop.mean(self, ask)  # robust means, masks and guards want every reply
        fold = RunningMean()
        # A single reply is not made larger by summing it in double precision.
        sums = self.together > 1
        for result in self.asked(ask, sums):
            if result.sums is not None:
                fold.add_partial(*result.sums)
            elif result.stacked is not None:
                weights = [self.weight(ask, c) for c in result.stacked[0]]
                fold.add_stacked(result.stacked[1], torch.tensor(weights, dtype=torch.float64))
            for client, reply in result.rows:
                fold.add(reply, self.weight(ask, client))
        return self.folded(ask, fold)

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        found = [row for result in self.asked(ask, False) for row in rows_in(result)]
        yield from sorted(found, key=lambda row: row[0])

    def asked(self, ask: Ask, sums: bool) -> Iterator[Result]:
        """Results of an ask by shard; what clients keep is stored."""
        weights = {c: self.weight(ask, c) for c in ask.to} if sums else {}
        at_once = self.stacks_shards and not is_solo(ask.verb)
        how = {"at_once": at_once, "shared": ask.each is None, "keeps": True, "sums": sums}
        job = self.job(ask.verb, ask.messages(), None, **how)
        for result, member in self.done(job, weights):
            for c, tree in result.kept.items():
                self.keeps.put(c, tree)
                if not self.keeps.on_disk:
                    self.there[c] = member, job.number, tree
            self.refused += [(c, name_of(ask.verb), self.turn.number) for c in result.refused]
            yield result

    # ---- whatever else clients do ----

    def each(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        data: Callable[[Client], Any],
        keep_as: Ask | None = None,
    ) -> Iterator[tuple[Client, Tree]]:
        """As in the loop, for verbs after which nothing is kept."""
        part = None if data == self.data else getattr(data, "keywords", {}).get("part", "val")
        results = self.done(self.job(verb, sent, part))
        found: dict[Client, Tree] = {}
        for client in sent:
            while client not in found:
                found |= dict(next(results)[0].rows)
            yield client, found.pop(client)

    def job(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        part: Part | None,
        *,
        at_once: bool = False,
        shared: bool = False,
        keeps: bool = False,
        sums: bool = False,
    ) -> VerbJob:
        turn = Turn(self.turn.number, (), (), self.turn.seed)
        nothing = self.keeps.nothing
        return VerbJob(
            next(self.jobs),
            verb,
            Letters.of(sent),
            turn,
            self.upto,
            at_once,
            shared,
            part,
            keeps,
            sums,
            nothing,
        )

    def done(
        self, job: VerbJob, weights: Mapping[Client, float] | None = None
    ) -> Iterator[tuple[Result, int]]:
        """Results of a job by shard, each with the actor that did it."""
        whose = job.letters.whose
        wanted = {
            (self.key, place): [c for c in some if c in whose]
            for place, some in enumerate(self.shards)
            if not whose.keys().isdisjoint(some)
        }
        did: dict[ShardName, int] = {}

        def give(shard: ShardName, member: int) -> Order:
            did[shard] = member
            kept = {c: self.known_as(c, member) for c in wanted[shard]}
            if job.keeps:  # until the result is here, nobody knows what the actor remembers
                for c in kept:
                    self.there.pop(c, None)
            return Order(shard, kept, {c: weights[c] for c in kept} if weights else {})

        letter = packed(job, {"method": self.method})
        doing = name_of(job.verb) if job.part is None else "scoring"
        what = f"{round_name(self.turn.number)}, {doing}"
        results = self.crew.work(self.method, letter, list(wanted), give, what)
        for shard, result in zip(wanted, results, strict=True):
            yield result, did[shard]

    def known_as(self, client: Client, member: int) -> Tree:
        """What a client keeps as its actor knows it: by a label, if the actor remembers it."""
        tree = self.keeps.get(client, self.upto)
        actor, job, remembered = self.there.get(client, (-1, 0, None))
        if tree is not None and actor == member and remembered is tree:
            return Label(job)
        return tree


class RayStacked(Ray, Vmap):
    """A shard's clients are stacked, as the vmap engine does with a chunk."""

    stacks_shards = True

    def __init__(
        self,
        clients_data: Mapping[Client, ClientData],
        crew: Crew,
        keeps: ClientStates | None = None,
        *,
        chunk: int = 128,
    ) -> None:
        Vmap.__init__(self, clients_data, keeps, chunk=chunk)
        self.assign(crew, self.in_order(self.clients), chunk)  # of a population, too: shards hold everybody

    def stacked(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        shared: bool,
        part: Part | None = None,
        stay: bool = False,
    ) -> Iterator[tuple[list[Client], Tree, Tree]]:
        """(clients, replies, nothing) of one shard after another."""
        for result, _ in self.done(self.job(verb, sent, part, at_once=True, shared=shared)):
            assert result.stacked is not None
            yield *result.stacked, ()


def rows_in(result: Result) -> list[tuple[Client, Tree]]:
    """Replies of clients, one by one."""
    if result.stacked is None:
        return result.rows
    clients, replies = result.stacked
    return list(zip(clients, unstack(replies, len(clients)), strict=True))


def rows_of(clients_data: Mapping[Client, ClientData], clients: Sequence[Client]) -> Packed:
    """The examples of some clients; those that lie in arrays that all clients share are copied."""
    found = {}
    for c in clients:
        held = clients_data[c]
        found[c] = replace(held, train=held.train.take(), val=held.val.take(), test=held.test.take())
    return packed(found)
