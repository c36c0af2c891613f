"""What an engine sends to an actor and gets back: jobs, orders and results.

A job is one verb with all that is sent; it goes to each actor once. An order says which clients of a shard are to do
it, and from what they keep. A result is what the shard's clients replied, one by one, stacked or summed, and what they
keep now.
Knows their form. Does not know how they travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from motet.core import Client, Part, Tree, Turn, Verb

ShardName = tuple[str, int]  # of an engine, and its number


class Inner(NamedTuple):
    """The engine inside of an actor."""

    name: Literal["loop", "threads", "vmap"]
    chunk: int = 0
    compiled: bool = False
    workers: int = 1


@dataclass(frozen=True)
class Letters:
    """What clients are sent, each thing once."""

    things: list[Tree]
    whose: dict[Client, int]

    @classmethod
    def of(cls, sent: Mapping[Client, Tree]) -> Letters:
        places: dict[int, int] = {}
        things: list[Tree] = []
        for tree in sent.values():
            if id(tree) not in places:
                places[id(tree)] = len(things)
                things.append(tree)
        return cls(things, {c: places[id(tree)] for c, tree in sent.items()})

    def to(self, client: Client) -> Tree:
        return self.things[self.whose[client]]


@dataclass(frozen=True)
class VerbJob:
    """One verb, for many clients."""

    number: int  # no two jobs of an engine have the same
    verb: Verb
    letters: Letters
    turn: Turn  # without the server's own examples
    upto: int
    at_once: bool  # whether clients of a shard are stacked
    shared: bool  # whether all clients are sent the same
    part: Part | None  # of the examples that clients are scored on; None for training
    keeps: bool  # whether what clients keep afterwards counts, and replies that are not finite are left out
    sums: bool  # whether replies are summed
    nothing_kept: bool  # whether no client at all keeps anything


@dataclass(frozen=True)
class Label:
    """Stands for what a client keeps, where the actor has it from the job with this number."""

    job: int


@dataclass(frozen=True)
class Order:
    """Who of a shard does the job."""

    shard: ShardName
    kept: dict[Client, Tree]  # by client, in order: what it keeps, a Label of it, or None
    weights: dict[Client, float] = field(default_factory=dict)  # of the clients in a sum


@dataclass
class Result:
    """What came of an order."""

    rows: list[tuple[Client, Tree]] = field(default_factory=list)  # replies one by one, or
    stacked: tuple[list[Client], Tree] | None = None  # stacked, or
    sums: Any = None  # summed: see RunningMean.partial
    kept: dict[Client, Tree] = field(default_factory=dict)
    refused: list[Client] = field(default_factory=list)
