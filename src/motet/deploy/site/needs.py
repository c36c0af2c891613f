"""What a method needs from a site, found out at the site: in a dry run, and from the method's text.

The dry run plays a few rounds among three simulated clients that all hold the first rows of the site's own
data, with short training. Nothing leaves, nothing is kept. What only later rounds would ask is read from the
method's text: which verbs stand in its calls of `average` and `collect`.
Knows asks, shapes and sizes. Does not know policies, nor letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from torch import Tensor

from motet.client import Batch, ClientData, LazyRows, seed_of
from motet.client.visit import VerbFailed, single_threaded
from motet.core import SIDES, Ask, Client, Method, NoReply, Tree, Turn, Verb
from motet.data.federated import FederatedData
from motet.deploy.site.policy import Need
from motet.engines.driver import play, start
from motet.engines.evaluate import evaluation_request, predictions, scores_at_home
from motet.engines.letters import LEARN, Reply
from motet.engines.loop import Loop
from motet.runs.method_asks import asks_in
from motet.wire import size

_ROWS = 16  # of each part of the data, for a dry run
_ROUNDS = 3
_SHORT = {"epochs": 1, "steps": 1, "head_epochs": 1, "warm_up": 1, "stretch": 1, "tune": 1, "epochs_max": 1}


class AskRecorder(Loop):
    """A loop that records what is asked and what would leave."""

    def __init__(self, clients_data: dict[Client, ClientData]) -> None:
        super().__init__(clients_data)
        self.needs: dict[tuple[str, str], Need] = {}
        self.now = ("", "")

    def ask(self, ask: Ask) -> Tree:
        self.now = (getattr(ask.verb, "__name__", ""), LEARN[ask.learn])
        return super().ask(ask)

    def perform(self, verb: Verb, client: Client, sent: Tree, keep: Tree, data: Any) -> tuple[Tree, Tree]:
        reply, after = super().perform(verb, client, sent, keep, data)
        self.record(*self.now, sent, reply)
        return reply, after

    def record(self, verb: str, learn: str, sent: Tree, reply: Tree) -> None:
        up, down = len(Reply(reply, 1 << 30).pack()), size(sent)
        if (last := self.needs.get((verb, learn))) is None or up > last.up:
            self.needs[verb, learn] = Need(verb, learn, tuple(described(reply)), up, down)


def needs_of(method: Method, federated: FederatedData) -> list[Need]:
    """All that the method may ask of this site, in the order in which it does."""
    (name, client_data), *_ = federated.clients_data.items()
    few: dict[str, Any] = {part: first_rows(getattr(client_data, part)) for part in ("train", "val", "test")}
    client = replace(client_data, **few)
    engine = AskRecorder({c: client for c in (name, f"{name} again", f"{name} once more")})
    with single_threaded():
        dry_run_rounds(shortened(method), engine, few["train"])
    found = list(engine.needs.values())
    known = {(n.verb, n.learn) for n in found}
    return found + [Need(v, how, seen=False) for v, how in asks_in(type(method)) if (v, how) not in known]


def dry_run_rounds(method: Method, engine: AskRecorder, proxy: Batch) -> None:
    """As far as it goes: for what needs other clients than these, the method's text is read."""

    def turn(number: int) -> Turn:
        return Turn(number, engine.clients, engine.clients, seed_of("rehearsal", number), proxy)

    try:
        state = start(engine, method, turn(-1))
        for number in range(_ROUNDS):
            state = play(engine, method, state, turn(number))
        client = engine.clients[0]
        sides = (*SIDES, "constant", "alone", *method.variants)
        sent = evaluation_request(method, state, method.download(state, client), sides)
        job = partial(predictions, method)
        found, _ = scores_at_home(method, client, job, sent, engine.keep(client), engine.client_test(client))
        engine.record("evaluate", "scores", sent, found)
    except (NoReply, VerbFailed):
        return


def first_rows(part: Batch | LazyRows) -> Batch:
    """A few rows of a part, so that a dry run is short."""
    batch = part.take()
    return Batch(batch.x[:_ROWS], batch.y[:_ROWS], batch.live[:_ROWS])


def shortened(method: Method) -> Method:
    """The same method with as little training as shows what it sends."""
    there = {f.name for f in fields(method)}
    short = {k: min(v, getattr(method, k)) for k, v in _SHORT.items() if k in there}
    return replace(method, **short)


def described(tree: Tree, path: str = "") -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every leaf with its name, type and shape."""
    if isinstance(tree, dict | list | tuple):
        for k, v in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from described(v, f"{path}.{k}" if path else str(k))
    elif isinstance(tree, Tensor):
        yield path or "reply", str(tree.dtype).removeprefix("torch."), tuple(tree.shape)
    else:
        yield path or "reply", type(tree).__name__, (len(tree),) if isinstance(tree, bytes | str) else ()
