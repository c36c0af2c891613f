"""An actor: holds the rows of some clients, and does jobs at them with an engine of its own.

Clients come in shards. A shard is stacked as a whole, or its clients are visited one by one; either way its result
does not depend on which other shards the actor holds. What clients keep is remembered here until it changes.
Knows engines and shards. Does not know the cluster.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch

from motet.client import ClientData
from motet.client.visit import single_threaded
from motet.core import Ask, Client, Method, Refusal, Tree
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.mean import RunningMean
from motet.engines.owned_objects import Packed, packed, unpacked
from motet.engines.ray_work import Inner, Label, Order, Result, ShardName, VerbJob
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.errors import MotetError

_METHODS = 4  # that are remembered


class Kept:
    """In place of an engine's client states: what an order came with, and what clients keep now."""

    def __init__(self, trees: dict[Client, Tree], nothing: bool) -> None:
        self.trees, self.nothing, self.new = trees, nothing, dict[Client, Tree]()

    def get(self, client: Client, upto: int | None = None) -> Tree | None:
        return self.trees[client]

    def get_all(self, clients: Sequence[Client], upto: int | None = None) -> list[Tree | None]:
        return [self.trees[c] for c in clients]

    def put(self, client: Client, tree: Tree) -> None:
        self.new[client] = tree

    def put_all(self, clients: Sequence[Client], trees: Sequence[Tree]) -> None:
        self.new.update(zip(clients, trees, strict=True))


class RayActor:
    """One process of the cluster. Its methods are called one after another."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.engines: dict[Any, Loop] = {}  # by shard if clients are stacked, else one for all of an engine
        self.methods: dict[int, Method] = {}
        self.known: dict[tuple[str, Client], tuple[int, Tree]] = {}  # what clients keep, and since which job
        self.job: tuple[Any, VerbJob | None] = (None, None)

    def where(self) -> int:
        """Its process; whoever asks learns that it is ready."""
        return os.getpid()

    def result_of(self, question: Callable[..., Any], *given: Any) -> Any:
        """What a function returns here."""
        return question(*given)

    def hold(self, shard: ShardName, rows: Packed) -> None:
        data: dict[Client, ClientData] = unpacked(rows)
        if self.inner.name == "vmap":
            how: dict[str, Any] = {"compiled": self.inner.compiled, "workers": self.inner.workers}
            self.engines[shard] = Vmap(data, chunk=max(1, len(data)), **how)
        elif shard[0] in self.engines:
            there = self.engines[shard[0]]
            there.clients_data = {**there.clients_data, **data}
        else:
            several = self.inner.workers > 1
            self.engines[shard[0]] = Threads(data, workers=self.inner.workers) if several else Loop(data)

    def learn(self, number: int, method: Packed) -> str:
        """Remember a method; what it lacks here, if it cannot be read."""
        try:
            self.methods[number] = unpacked(method)
        except (ImportError, AttributeError) as e:
            return f"{type(e).__name__}: {e}"
        for old in list(self.methods)[:-_METHODS]:
            del self.methods[old]
        return ""

    def work(self, method: int, key: Any, job: Packed, orders: Packed) -> Packed:
        """Results of some orders, or the error that ended them."""
        try:
            with single_threaded():
                return packed(
                    self.results(self.methods[method], self.job_of(method, key, job), unpacked(orders))
                )
        except MotetError as e:
            return packed(e)
        except Exception as e:  # noqa: BLE001 mostly of code of the user's own: it is raised again where the run is
            e.add_note("".join(traceback.format_exception(e)))
            return packed(e)

    def job_of(self, method: int, key: Any, job: Packed) -> VerbJob:
        """The job; one that came with the last orders too is not read again."""
        if self.job[0] != key:
            self.job = key, unpacked(job, {"method": self.methods[method]})
        return cast(VerbJob, self.job[1])

    def results(self, method: Method, job: VerbJob, orders: Sequence[Order]) -> list[Result]:
        """In the order of the orders. Shards of one engine are done together, so that its threads are all busy."""
        groups: dict[Any, list[Order]] = {}
        for order in orders:
            groups.setdefault(self.engine_name(order.shard), []).append(order)
        found: dict[ShardName, Result] = {}
        for name, some in groups.items():
            engine, keeps = self.engines[name], self.kept(job, some)
            engine.keeps, engine.refused = cast(ClientStates, keeps), []
            engine.visit(method, job.turn, job.upto)
            found |= stacked(engine, job, some[0]) if job.at_once else one_by_one(engine, job, some)
            for order in some:
                self.add_kept(job, order, found[order.shard], keeps, engine.refused)
        return [found[order.shard] for order in orders]

    def engine_name(self, shard: ShardName) -> Any:
        return shard if self.inner.name == "vmap" else shard[0]

    def kept(self, job: VerbJob, orders: Sequence[Order]) -> Kept:
        """What clients keep, sent or remembered."""
        trees = {
            c: self.known[order.shard[0], c][1] if isinstance(tree, Label) else tree
            for order in orders
            for c, tree in order.kept.items()
        }
        return Kept(trees, job.nothing_kept)

    def add_kept(
        self, job: VerbJob, order: Order, result: Result, keeps: Kept, refused: Sequence[Refusal]
    ) -> None:
        """What clients of the order keep now, and whose replies were left out."""
        result.kept = {c: keeps.new[c] for c in order.kept if c in keeps.new}
        self.known |= {(order.shard[0], c): (job.number, tree) for c, tree in result.kept.items()}
        left_out = {c for c, _, _ in refused}
        result.refused = [c for c in order.kept if c in left_out]


def one_by_one(engine: Loop, job: VerbJob, orders: Sequence[Order]) -> dict[ShardName, Result]:
    """One client after another, or as many at a time as the engine has threads."""
    sent = {c: job.letters.to(c) for order in orders for c in order.kept}
    data = engine.data if job.part is None else partial(engine.client_test, part=job.part)
    keep_as = Ask(job.verb, list(sent)) if job.keeps else None
    replies = dict(engine.each(job.verb, sent, data, keep_as))
    found = {}
    for order in orders:
        rows = [(c, replies[c]) for c in order.kept if c in replies]
        found[order.shard] = Result(rows=[] if job.sums else rows)
        if job.sums and rows:
            total = RunningMean()
            for c, reply in rows:
                total.add(reply, order.weights[c])
            found[order.shard].sums = total.partial()
    return found


def stacked(engine: Loop, job: VerbJob, order: Order) -> dict[ShardName, Result]:
    """All clients of a shard at once."""
    engine = cast(Vmap, engine)
    sent = {c: job.letters.to(c) for c in order.kept}
    if job.keeps:
        message: dict[str, Any] = {"send": job.letters.things[0]} if job.shared else {"each": sent}
        found = list(engine.chunks(Ask(job.verb, list(sent), **message)))
    else:
        found = [(c, replies) for c, replies, _ in engine.stacked(job.verb, sent, job.shared, job.part)]
    result = Result(stacked=None if job.sums or not found else found[0])
    if job.sums and found:
        total = RunningMean()
        weights = torch.tensor([order.weights[c] for c in found[0][0]], dtype=torch.float64)
        total.add_stacked(found[0][1], weights)
        result.sums = total.partial()
    return {order.shard: result}
