"""A visit: one verb at one client, in one turn.

Engines, sites, dry runs and expected replies all go through here, so that a verb sees the same examples and
the same seed wherever its client lives.
Knows one client's examples and one method. Does not know where clients live, nor what is done with replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from motet.client.data import Batch, ClientData, ClientTest, Data, seed_of
from motet.errors import MotetError

if TYPE_CHECKING:
    from motet.core import Client, Method, Part, Tree, Verb

_FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class VerbFailed(MotetError):
    """A verb failed at a client; says which, where and when."""


@dataclass(frozen=True)
class Visit:
    """One client in one turn; `seed` and `round` are the turn's."""

    method: Method
    client: Client
    client_data: ClientData
    seed: int
    round: int

    @cached_property
    def data(self) -> Data:
        return examples(self.client_data, self.seed, self.client, self.round)

    def test(self, part: Part) -> ClientTest:
        return ClientTest(self.data, tested(self.client_data, part))

    def joined(self) -> Tree:
        """What a client keeps before it is first asked anything."""
        return self.method.join(self.data)

    def perform(self, verb: Verb, sent: Tree, keep: Tree, data: Any = None) -> tuple[Tree, Tree]:
        """The reply and what is kept; `data` are the client's examples, unless others are given."""
        return perform(verb, sent, keep, self.data if data is None else data, self.round, self.client)


def examples(client_data: ClientData, seed: int, client: Client, number: int) -> Data:
    """A client's training and validation examples, with its own seed of the turn whose seed and number are given."""
    train, val = client_data.train.take(), client_data.val.take()
    n, own = torch.tensor(client_data.n), torch.tensor(seed_of(seed, client))
    columns, augment, weight = client_data.columns, client_data.augment, None
    if client_data.weighted:
        weight, val = train.evened().live, val.evened()
    noise = None if client_data.noise is None else torch.tensor(client_data.noise, dtype=torch.float64)
    how = client_data.private
    return Data(train.x, train.y, n, own, val, columns, augment, torch.tensor(number), weight, noise, how)


def tested(client_data: ClientData, part: Part) -> Batch:
    """The examples that a client is scored on."""
    return (client_data.val if part == "val" else client_data.test).take()


def perform(
    verb: Verb, sent: Tree, keep: Tree, data: Any, number: int, client: Client = ""
) -> tuple[Tree, Tree]:
    """Call a verb; whatever goes wrong becomes a VerbFailed that names client, verb and round."""
    try:
        return checked_pair(verb(sent, keep, data))
    except _FAILURES as e:
        raise VerbFailed(f"{place(verb, number, client)}: {e}") from e


def checked_pair(returned: Any) -> tuple[Tree, Tree]:
    """What a verb returned, if it is what every verb must return."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"it returned {type(returned).__name__}; a verb must return a pair (reply, keep)")
    return returned


def place(verb: Verb, number: int, client: Client = "") -> str:
    """Client, verb and round, for messages; people count rounds from 1."""
    who, when = (
        f"client {client}, " if client else "",
        f"round {number + 1}" if number >= 0 else "before round 1",
    )
    return f"{who}verb {name_of(verb)}, {when}"


def name_of(verb: Any) -> str:
    return str(getattr(verb, "__name__", "")) or name_of(verb.func)


# ---- how a thread computes ----
# Two intra-op threads are far slower beside any other process, and so are numbers near 0 (denormals), which
# the tails of a softmax are full of.


def single_thread() -> None:
    """For a thread of our own: one intra-op thread, and no denormal numbers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether this thread already takes denormal numbers for zero."""
    return bool(torch.full((), 1e-38) * 0.01 == 0)


@contextmanager
def single_threaded() -> Iterator[None]:
    """For a caller's thread: as `single_thread`, and afterwards as before."""
    before, flushed = torch.get_num_threads(), flushes_denormals()
    single_thread()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)
