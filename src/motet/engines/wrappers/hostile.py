"""A wrapper that makes some clients hostile, to simulate an attack on a method and its mean.

A hostile client trains as it should, keeps what it should, and sends a wrong reply; a free rider sends one that took
no training; a client with inflated numbers sends a right one, and says that it has more examples. The reply is changed
inside the verb, before anything is averaged, so every engine can be wrapped. Scores are of the models
that clients trained, which the attack leaves as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client import Data, seed_of
from motet.client.data import hashes
from motet.client.visit import name_of
from motet.core import Ask, Client, Engine, Method, Tree, Turn, Verb, is_solo, verb
from motet.engines.loop import Loop
from motet.engines.wrappers.wrapper import Wrapper

How = Literal["nan", "zero", "flip", "idle", "replay", "noise", "inflate"]
# (reply, sent, sent in the round before, noise of the same shape that is as long as the update)
Change = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
CHANGES: dict[How, Change] = {
    "nan": lambda reply, sent, before, noise: torch.full_like(reply, torch.nan),
    "zero": lambda reply, sent, before, noise: torch.zeros_like(reply),
    "flip": lambda reply, sent, before, noise: sent - (reply - sent),
    "idle": lambda reply, sent, before, noise: sent,
    "replay": lambda reply, sent, before, noise: sent + (sent - before),
    "noise": lambda reply, sent, before, noise: sent + noise,
    "inflate": lambda reply, sent, before, noise: reply,
}
INFLATED = 10.0  # times its examples that a client with inflated numbers says it has
_BEFORE = "\x1fattack"  # in no client's name: under it is kept what was sent in the round before
_SALT = 1 << 42  # of noise, far from the salts of batch orders and of methods


class Hostile(Wrapper):
    """Any engine; the clients in `which` change what they reply, or what they weigh.

    nan, zero: every number; flip: the update with its sign turned. Free riders: idle sends back what was sent, replay
    sends how the model moved in the round before, noise sends random numbers as long as an honest update. inflate:
    the reply counts as ten times its examples where numbers of examples are weights.
    An update is what a reply differs in from what was sent, where both are trees of the same shapes;
    any other reply is taken for an update itself. Only floating numbers are changed.
    """

    def __init__(self, engine: Engine, which: Iterable[Client], how: How) -> None:
        super().__init__(engine)
        self.which, self.how = sorted(which), how
        self.seeds = torch.empty(0, dtype=torch.int64)
        self.number = -1

    def begin(self, method: Method, turn: Turn) -> None:
        # The verb knows hostile clients by their seed, which is another for every client and turn.
        self.seeds = torch.tensor([seed_of(turn.seed, c) for c in self.which], dtype=torch.int64)
        self.number = turn.number
        super().begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        if self.how == "inflate":
            return super().ask(self.inflated(ask))
        before = self.before(ask) if self.how == "replay" else ()
        return super().ask(replace(ask, verb=attacked(ask.verb, self.seeds, self.how, before), fuse=None))

    def before(self, ask: Ask) -> Tree:
        """What the same verb was sent in the round before; kept as clients' states are, so that a run can go on."""
        known = self.keeps.get(_BEFORE, self.number - 1) or {}
        now = self.keeps.get(_BEFORE, self.number) or {}
        if ask.each is None:
            self.keeps.put(_BEFORE, now | {name_of(ask.verb): ask.send})
        return known.get(name_of(ask.verb), ())

    def inflated(self, ask: Ask) -> Ask:
        if ask.learn != "mean" or ask.weights is not None or not isinstance(self.engine, Loop):
            return ask
        true = {c: self.engine.weight(ask, c) for c in ask.to}
        return replace(ask, weights={c: w * (INFLATED if c in self.which else 1) for c, w in true.items()})


def attacked(asked: Verb, seeds: Tensor, how: How, before: Tree = ()) -> Verb:
    """The verb, with replies changed at the clients whose seeds these are; no branch, so it can be stacked."""

    @wraps(asked)
    def attack(sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, kept = asked(sent, keep, data)
        hostile = (data.seed == seeds.to(data.seed.device)).any()
        return changed(reply, sent, hostile, how, before, data.seed), kept

    return verb(solo=is_solo(asked))(attack)


def changed(
    reply: Tree, sent: Tree, hostile: Tensor, how: How, before: Tree = (), seed: Tensor | None = None
) -> Tree:
    """The reply; where `hostile` is true, what the attack makes of it."""
    honest, spec = pytree.tree_flatten(reply)
    asked, last = _alike(sent, honest, spec), _alike(before, honest, spec)
    found = []
    for i, h in enumerate(honest):
        if not _float(h):
            found.append(h)
            continue
        start = asked[i] if asked else torch.zeros_like(h)
        noise = _noise(h - start, seed, i) if how == "noise" else h
        wrong = CHANGES[how](h, start, last[i] if last else start, noise)
        found.append(torch.where(hostile, wrong, h))
    return pytree.tree_unflatten(found, spec)


def _alike(tree: Tree, honest: list[Any], spec: Any) -> list[Any]:
    """The tensors of a tree that has the reply's form; none if it has another."""
    values, other = pytree.tree_flatten(tree)
    same = spec == other and all(
        isinstance(a, Tensor) and isinstance(h, Tensor) and a.shape == h.shape
        for h, a in zip(honest, values, strict=True)
    )
    return values if same else []


def _noise(update: Tensor, seed: Tensor | None, leaf: int) -> Tensor:
    """Random numbers as long as an update."""
    start = torch.zeros((), dtype=torch.int64) if seed is None else seed
    draw = (hashes(start, _SALT + leaf, torch.arange(update.numel())) >> 38) / 2**24 - 0.5
    noise: Tensor = draw * update.norm() / draw.norm()
    return noise.reshape(update.shape).to(update.dtype)


def _float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
