"""Guards as pairs: `leave` at the client, `arrive` at the server, in reverse order.

    chain = Chain((Clip(1.0), Compress(bits=8)))
    message, kept = chain.leave(reply, Leaving(sent, weight, seed), kept)  # at the client
    reply = chain.arrive(message, sent)  # at the server, before the mean

Each guard may keep something at the client from one ask to the next, say what compression left out. It is a tree,
it never leaves the client, and it is stored beside what the method keeps, with the same versions.
Knows replies of one client. Does not know other clients, engines or methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.utils import _pytree as pytree

from motet.core import Client, Tree
from motet.vec import Vec

_MARK = "\x1f"  # in no client's name that people write


class ArrivedWrong(ValueError):
    """What came cannot be what a guard let leave."""


@dataclass(frozen=True)
class Leaving:
    """What a guard knows when a reply leaves: what was asked, how much the reply weighs, and a seed of its own."""

    sent: Tree
    weight: float
    seed: int


class Guard(Protocol):
    """One pair. `name` is under what it keeps something at the client."""

    name: str

    def leave(self, reply: Tree, about: Leaving, kept: Tree) -> tuple[Tree, Tree]:
        """What leaves in place of a reply, and what this guard keeps; `kept` is () at first."""

    def arrive(self, came: Tree, sent: Tree) -> Tree:
        """The reply again, as far as the guard lets it be known; ArrivedWrong for what no guard let leave."""


@dataclass(frozen=True)
class Chain:
    """Guards in the order in which a reply leaves through them."""

    guards: Sequence[Guard]

    def leave(self, reply: Tree, about: Leaving, kept: Mapping[str, Tree]) -> tuple[Tree, dict[str, Tree]]:
        new: dict[str, Tree] = {}
        for guard in self.guards:
            reply, stays = guard.leave(reply, about, kept.get(guard.name, ()))
            if not is_nothing(stays):
                new[guard.name] = stays
        return reply, new

    def arrive(self, came: Tree, sent: Tree) -> Tree:
        for guard in reversed(self.guards):
            came = guard.arrive(came, sent)
        return came

    @property
    def codes(self) -> bool:
        """Whether what leaves is something else than a reply, and must be read again at the server."""
        return any(getattr(g, "codes", False) for g in self.guards)


def is_nothing(tree: Tree) -> bool:
    return isinstance(tree, tuple) and not tree


def kept_under(client: Client) -> str:
    """Under which name an engine stores what a client's guards keep."""
    return f"{client}{_MARK}guard"


# ---- updates ----


def float_leaves(tree: Tree) -> tuple[list[Tensor], list[int], list[Any], Any]:
    """The floating tensors of a tree, their places among its leaves, all leaves, and the tree's structure."""
    values, spec = pytree.tree_flatten(tree)
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.is_floating_point()]
    return [values[i] for i in places], places, values, spec


def origin(reply: Tree, sent: Tree) -> list[Tensor] | None:
    """What an update is measured from: the floating tensors of what was sent, or of the one part of it that has the
    reply's names and shapes. Else, or where several parts have them, the reply is an update itself, and there is none.
    """
    form = form_of(reply)
    found = [part for part in parts_of(sent) if form_of(part) == form]
    return float_leaves(found[0])[0] if len(found) == 1 and float_leaves(reply)[0] else None


def parts_of(tree: Tree) -> Iterator[Tree]:
    """A tree and the trees in it; a vector of weights is one thing."""
    yield tree
    if isinstance(tree, dict | list | tuple) and not isinstance(tree, Vec):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from parts_of(part)


def form_of(tree: Tree) -> tuple[Any, list[Any]]:
    floats, places, _, spec = float_leaves(tree)
    return spec, [*places, *(f.shape for f in floats)]


def update_of(reply: Sequence[Tensor], start: Sequence[Tensor] | None) -> list[Tensor]:
    """How a reply differs from its origin, in double precision, flat."""
    if start is None:
        return [r.double().reshape(-1) for r in reply]
    return [(r.double() - a.double()).reshape(-1) for r, a in zip(reply, start, strict=True)]


def reply_of(
    update: Sequence[Tensor], like: Sequence[Tensor], start: Sequence[Tensor] | None
) -> list[Tensor]:
    """The reply that differs by an update from its origin, of the types and shapes of `like`."""
    shaped = [u.reshape(r.shape) for u, r in zip(update, like, strict=True)]
    if start is not None:
        shaped = [u + a.double() for u, a in zip(shaped, start, strict=True)]
    return [u.to(r.dtype) for u, r in zip(shaped, like, strict=True)]


def with_floats(tree: Tree, floats: Sequence[Tensor]) -> Tree:
    """The tree with other floating tensors."""
    _, places, values, spec = float_leaves(tree)
    for i, v in zip(places, floats, strict=True):
        values[i] = v
    return pytree.tree_unflatten(values, spec)
