"""A wrapper that makes some clients hostile, to simulate an attack on a method and its mean.

A hostile client trains as it should, keeps what it should, and sends a wrong reply. The reply is changed
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
from motet.core import Ask, Client, Engine, Method, Tree, Turn, Verb, is_solo, verb
from motet.engines.wrappers.wrapper import Wrapper

How = Literal["nan", "zero", "flip"]
CHANGES: dict[How, Callable[[Tensor, Tensor], Tensor]] = {
    "nan": lambda reply, sent: torch.full_like(reply, torch.nan),
    "zero": lambda reply, sent: torch.zeros_like(reply),
    "flip": lambda reply, sent: sent - (reply - sent),
}


class Hostile(Wrapper):
    """Any engine; the clients in `which` reply with nan, with zeros, or with their update's sign flipped.

    An update is what a reply differs in from what was sent, where both are trees of the same shapes;
    any other reply is taken for an update itself. Only floating numbers are changed.
    """

    def __init__(self, engine: Engine, which: Iterable[Client], how: How) -> None:
        super().__init__(engine)
        self.which, self.how = sorted(which), how
        self.seeds = torch.empty(0, dtype=torch.int64)

    def begin(self, method: Method, turn: Turn) -> None:
        # The verb knows hostile clients by their seed, which is another for every client and turn.
        self.seeds = torch.tensor([seed_of(turn.seed, c) for c in self.which], dtype=torch.int64)
        super().begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        return super().ask(replace(ask, verb=attacked(ask.verb, self.seeds, self.how), fuse=None))


def attacked(asked: Verb, seeds: Tensor, how: How) -> Verb:
    """The verb, with replies changed at the clients whose seeds these are; no branch, so it can be stacked."""

    @wraps(asked)
    def attack(sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, kept = asked(sent, keep, data)
        return changed(reply, sent, (data.seed == seeds.to(data.seed.device)).any(), how), kept

    return verb(solo=is_solo(asked))(attack)


def changed(reply: Tree, sent: Tree, hostile: Tensor, how: How) -> Tree:
    """The reply; where `hostile` is true, what the attack makes of it."""
    honest, spec = pytree.tree_flatten(reply)
    asked, other = pytree.tree_flatten(sent)
    alike = spec == other and all(
        isinstance(a, Tensor) and isinstance(h, Tensor) and a.shape == h.shape
        for h, a in zip(honest, asked, strict=True)
    )
    found = [
        torch.where(hostile, CHANGES[how](h, a if alike else torch.zeros_like(h)), h) if _float(h) else h
        for h, a in zip(honest, asked if alike else honest, strict=True)
    ]
    return pytree.tree_unflatten(found, spec)


def _float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
