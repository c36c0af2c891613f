"""A wrapper that makes some clients hostile, to rehearse what a method and a mean bear.

A hostile client works as it should, keeps what it should, and lies about its reply. The lie is given_leaves
inside the verb, before anything is averaged, so every engine can be wrapped.
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

How = Literal["nan", "zero", "flip"]
LIES: dict[How, Callable[[Tensor, Tensor], Tensor]] = {
    "nan": lambda said, sent: torch.full_like(said, torch.nan),
    "zero": lambda said, sent: torch.zeros_like(said),
    "flip": lambda said, sent: sent - (said - sent),
}


class Hostile:
    """Any engine; the clients in `which` reply with nan, with zeros, or with their update's sign flipped.

    An update is what a reply differs in from what was sent, where both are trees of the same shapes;
    any other reply is taken for an update itself. Only floating numbers are changed.
    """

    def __init__(self, engine: Engine, which: Iterable[Client], how: How) -> None:
        self.engine, self.clients = engine, engine.clients
        self.which, self.how = sorted(which), how
        self.seeds = torch.empty(0, dtype=torch.int64)

    def begin(self, method: Method, turn: Turn) -> None:
        # A client's examples come with a seed that is its own in this turn: by it the verb knows the hostile.
        self.seeds = torch.tensor([seed_of(turn.seed, c) for c in self.which], dtype=torch.int64)
        self.engine.begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        return self.engine.ask(replace(ask, verb=lying(ask.verb, self.seeds, self.how)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def lying(asked: Verb, seeds: Tensor, how: How) -> Verb:
    """The verb, with replies changed at the clients whose seeds these are; no branch, so it can be stacked."""

    @wraps(asked)
    def lie(sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, kept = asked(sent, keep, data)
        return poisoned(reply, sent, (data.seed == seeds).any(), how), kept

    return verb(solo=is_solo(asked))(lie)


def poisoned(reply: Tree, sent: Tree, hostile: Tensor, how: How) -> Tree:
    """The reply, or the lie where `hostile` is true."""
    said, shape = pytree.tree_flatten(reply)
    asked, other = pytree.tree_flatten(sent)
    alike = shape == other and all(
        isinstance(a, Tensor) and isinstance(s, Tensor) and a.shape == s.shape
        for s, a in zip(said, asked, strict=True)
    )
    lies = [
        torch.where(hostile, LIES[how](s, a if alike else torch.zeros_like(s)), s) if _float(s) else s
        for s, a in zip(said, asked if alike else said, strict=True)
    ]
    return pytree.tree_unflatten(lies, shape)


def _float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
