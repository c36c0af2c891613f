"""The loop engine: one client after another, in this process. Plain, and the definition of what is right.

Knows where clients' examples and keeps are. Does not know what any verb does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client import ClientData, ClientTest, Data, seed_of
from motet.core import Ask, Client, Method, NoReply, Tree, Turn, is_verb
from motet.engines.client_state import ClientStates
from motet.engines.evaluate import Job, evaluate, evaluate_trained, evaluation_request, personal_model
from motet.engines.mean import ReplyMean, RunningMean
from motet.errors import MotetError
from motet.vec import leaves, stack

Part = Literal["val", "test"]


class VerbFailed(MotetError):
    """A verb failed at a client; says which, where and when."""


class AllRefused(VerbFailed, NoReply):
    """Clients answered an ask, and no reply can be used."""


class Loop:
    """Every engine in this process is a Loop that goes about `replies` in its own way."""

    name = "loop"

    def __init__(self, clients_data: Mapping[Client, ClientData], keeps: ClientStates | None = None) -> None:
        self.clients_data = dict(clients_data)
        self.clients = sorted(clients_data)
        self.keeps = keeps or ClientStates()
        self.fold: Callable[[], ReplyMean] = (
            RunningMean  # what averages; the plain mean unless a guard is set
        )
        self.refused: list[
            tuple[Client, str, int]
        ] = []  # whose replies were left out, to what, in which round
        self.refused_before = 0  # the ask that is under way
        self.at_hand: dict[Client, Data] = {}  # of the turn whose seed is `at_hand_of`
        self.at_hand_of = -1
        self.method: Method
        self.turn: Turn

    # ---- what a run asks ----

    def begin(self, method: Method, turn: Turn) -> None:
        self.method, self.turn = method, turn
        self.keeps.begin(turn.number)

    def ask(self, ask: Ask) -> Tree:
        if not is_verb(ask.verb):
            raise TypeError(f"{name_of(ask.verb)} is not a verb; hint: mark what runs at clients with @verb")
        self.refused_before = len(self.refused)
        return self.mean(ask) if ask.learn == "mean" else self.everything(ask)

    def mean(self, ask: Ask) -> Tree:
        fold = self.fold()
        for client, reply in self.replies(ask):
            fold.add(reply, self.weight(ask, client))
        return self.folded(ask, fold)

    def everything(self, ask: Ask) -> dict[Client, Tree]:
        found = dict(self.replies(ask))
        if not found:
            self.check_not_all_refused(ask)
        return found

    def evaluate(self, method: Method, state: Tree, turn: Turn, part: Part) -> tuple[list[Client], Tree]:
        """All clients' sums on `part` of their examples, stacked, as they were after `turn`."""
        self.method, self.turn = method, turn
        return self.evaluate_clients(state, part)

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        """Sums on both parts of the models that left clients in `turn`, from how things were before it."""
        self.method, self.turn = method, replace(turn, number=turn.number - 1)
        found = [self.evaluate_after(ask) for ask in asks]
        names = [c for clients, _ in found for c in clients]
        return names, pytree.tree_map(lambda *s: torch.cat(s), *(sums for _, sums in found))

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        """Every client's personal model, as it was after `turn`."""
        self.method, self.turn = method, turn
        views = {c: method.download(state, c) for c in self.clients}
        yield from self.each(partial(personal_model, method), self.clients, views, self.client_test)

    # ---- how this engine goes about it ----

    def replies(self, ask: Ask) -> Iterator[tuple[Client, Tree]]:
        """Replies that can be used, in a fixed order, whatever the order of the ask."""
        order = sorted(ask.to)
        sent = {c: ask.sent_to(c) for c in order}
        yield from self.each(ask.verb, order, sent, self.data, keep_as=ask)

    def each(
        self,
        job: Job,
        clients: Iterable[Client],
        sent: Mapping[Client, Tree],
        data: Callable[[Client], Any],
        keep_as: Ask | None = None,
    ) -> Iterator[tuple[Client, Tree]]:
        """Do one job at some clients, one after another; what they keep is stored if `keep_as` is given."""
        for c in clients:
            reply, keep = self.guarded(job, c, sent[c], self.keep(c), data(c))
            if keep_as is None or self.accepted(keep_as, c, reply, keep):
                yield c, reply

    def evaluate_clients(self, state: Tree, part: Part) -> tuple[list[Client], Tree]:
        method = self.method
        sent = {c: evaluation_request(method, state, method.download(state, c)) for c in self.clients}
        found = self.each(partial(evaluate, method), self.clients, sent, partial(self.client_test, part=part))
        names, sums = zip(*found, strict=True)
        return list(names), stack(list(sums))

    def evaluate_after(self, ask: Ask) -> tuple[list[Client], Tree]:
        order = sorted(ask.to)
        sent = {c: ask.sent_to(c) for c in order}
        job, tested = partial(evaluate_trained, self.method, ask.verb), partial(self.client_test, part="test")
        names, sums = zip(*self.each(job, order, sent, tested), strict=True)
        return list(names), stack(list(sums))

    # ---- where things are ----

    def data(self, client: Client) -> Data:
        """A client's examples and its seed of this turn; remembered if nothing must be copied for it."""
        if self.at_hand_of != self.turn.seed:
            self.at_hand, self.at_hand_of = {}, self.turn.seed
        if (known := self.at_hand.get(client)) is not None:
            return known
        client_data = self.clients_data[client]
        train, seed = client_data.train.take(), torch.tensor(seed_of(self.turn.seed, client))
        n = torch.tensor(client_data.n)
        made = Data(
            train.x, train.y, n, seed, client_data.val.take(), client_data.columns, client_data.augment
        )
        if train is client_data.train:
            self.at_hand[client] = made
        return made

    def client_test(self, client: Client, part: Part = "val") -> ClientTest:
        client_data = self.clients_data[client]
        return ClientTest(self.data(client), (client_data.val if part == "val" else client_data.test).take())

    def keep(self, client: Client) -> Tree:
        kept = self.keeps.get(client, self.turn.number)
        return self.joined(client) if kept is None else kept

    def joined(self, client: Client) -> Tree:
        """What a client comes with that was never asked anything."""
        return self.method.join(self.data(client)) if type(self.method).join is not Method.join else ()

    def weight(self, ask: Ask, client: Client) -> float:
        return float(self.clients_data[client].n if ask.weights is None else ask.weights[client])

    # ---- what can go wrong ----

    def guarded(self, job: Job, client: Client, sent: Tree, keep: Tree, data: Any) -> tuple[Tree, Tree]:
        try:
            return job(sent, keep, data)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
            raise VerbFailed(f"{self.where(job, client)}: {e}") from e

    def accepted(self, ask: Ask, client: Client, reply: Tree, keep: Tree) -> bool:
        """Whether a reply can be used; if so, what the client keeps is stored, else it keeps what it had."""
        if not all_finite(reply):
            self.refused.append((client, name_of(ask.verb), self.turn.number))
            return False
        self.keeps.put(client, keep)
        return True

    def folded(self, ask: Ask, fold: ReplyMean) -> Tree:
        if fold.weight <= 0:
            self.check_not_all_refused(ask)
            raise NoReply(f"{self.where(ask.verb)}: nobody answered; hint: is the cohort empty?")
        try:
            return fold.mean()
        except NoReply as e:
            raise NoReply(f"{self.where(ask.verb)}: {e}") from e

    def check_not_all_refused(self, ask: Ask) -> None:
        """One client may be broken; where nobody's reply can be used, it is the training that is."""
        if refused := self.refused[self.refused_before :]:
            who = f"none of {len(refused)} replies is finite, {refused[0][0]}'s among them"
            raise AllRefused(f"{self.where(ask.verb)}: {who}{self.advice()}")

    def advice(self) -> str:
        rates = [k for k in ("lr", "lr_max") if getattr(self.method, k, None)]
        if not rates:
            return ""
        rate = f"{rates[0]}={getattr(self.method, rates[0])}"
        return f" ({rate})\nhint: training diverged; try a smaller method.{rates[0]} or set method.clip"

    def where(self, job: Callable[..., Any], client: Client | None = None) -> str:
        who = f"client {client}, " if client else ""
        return f"{who}verb {name_of(job)}, round {self.turn.number}"


def name_of(job: Any) -> str:
    return str(getattr(job, "__name__", "")) or name_of(job.func)


def all_finite(tree: Tree) -> bool:
    """Whether no number is nan or infinite."""
    return _finite(tree) if isinstance(tree, Tensor) else all(map(_finite, leaves(tree)))


def _finite(v: Any) -> bool:
    if isinstance(v, float):
        return math.isfinite(v)
    if not (isinstance(v, Tensor) and v.is_floating_point()):
        return True
    # A sum shows it in one pass; only large numbers, whose sum overflows, need a closer look.
    return math.isfinite(v.sum()) or bool(torch.isfinite(v).all())
