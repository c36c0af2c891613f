"""The examples of very many clients: none of them is an object before it is asked for.

A population is a mapping from names to clients' examples, like a dict. It holds the names, how many rows each client
has, and a function that makes one client's examples: from slices of arrays that may be memory-mapped, or by drawing
them. So a client costs its entry in an index, and a round costs its cohort.
Knows names, counts and one such function. Does not know where rows come from.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np

from motet.client.data import ClientData

MANY = 10_000  # clients from which a federation is kept as a population, and scored by a sample
_HELD = 256  # clients whose examples are held at a time: more than a chunk of an engine


class Names(Sequence[str]):
    """Names of clients, each once, that are found without a dict of them."""

    @abstractmethod
    def likely(self, name: str) -> int:
        """The only place where this name can be; `len(self)` or more if there is none."""

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        place = self.likely(value) if isinstance(value, str) else len(self)
        if place >= len(self) or self[place] != value:
            raise ValueError(f"{value} is not the name of a client")
        return place

    def __contains__(self, value: object) -> bool:
        try:
            return self.index(value) >= 0
        except ValueError:
            return False


class NumberedNames(Names):
    """Names by arithmetic, in alphabetical order.

    >>> names = NumberedNames(1000)
    >>> names[42], names.index("client-007"), "client-1000" in names, len(names)
    ('client-042', 7, False, 1000)
    """

    def __init__(self, many: int, prefix: str = "client-") -> None:
        self.many, self.prefix, self.width = many, prefix, len(str(many - 1))

    def __len__(self) -> int:
        return self.many

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.many))]
        place = range(self.many)[at]  # raises for a place that is not there
        return f"{self.prefix}{place:0{self.width}}"

    def __iter__(self) -> Iterator[str]:
        return (f"{self.prefix}{i:0{self.width}}" for i in range(self.many))

    def likely(self, name: str) -> int:
        digits = name.removeprefix(self.prefix)
        return int(digits) if digits.isdecimal() and len(digits) == self.width else self.many


class SortedNames(Names):
    """Any names in alphabetical order, found without a dict of them.

    >>> names = SortedNames(["a", "b", "d"])
    >>> names.index("d"), "c" in names
    (2, False)
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        return self.names[at]

    def likely(self, name: str) -> int:
        return bisect_left(self.names, name)


class Population(Mapping[str, ClientData]):
    """Clients' examples by name; `make(place)` gives those of one client."""

    def __init__(
        self,
        names: Sequence[str],
        sizes: np.ndarray,
        make: Callable[[int], ClientData],
        digest: str = "",
        weighted: bool = False,
    ) -> None:
        self.names = names  # in alphabetical order
        self.sizes = sizes  # (clients, 3) rows for training, validation and test
        self.digest = digest  # of all rows; "" where they must be read for it
        self.weighted = weighted
        self.make = lru_cache(_HELD)(make)

    def __getitem__(self, client: str) -> ClientData:
        try:
            return self.make(self.names.index(client))
        except ValueError as e:
            raise KeyError(client) from e

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, client: object) -> bool:
        return client in self.names

    def rows(self, client: str) -> int:
        return int(self.sizes[self.names.index(client), 0])


# ---- of a dict and of a population alike, in the time that each allows ----

Clients = Mapping[str, ClientData]


def names_of(clients: Clients | Sequence[str]) -> Sequence[str]:
    """The clients, one after another, as a sequence that need not be a list."""
    if isinstance(clients, Population):
        return clients.names
    return clients if isinstance(clients, Sequence) else list(clients)


def rows_of(clients: Clients, client: str) -> int:
    """Training rows of one client."""
    return clients.rows(client) if isinstance(clients, Population) else clients[client].n


def total_of(clients: Clients, client: str) -> float:
    """What one client counts in a mean over clients."""
    if isinstance(clients, Population) and not clients.weighted:
        return float(clients.rows(client))
    return clients[client].total


def sizes_of(clients: Clients) -> np.ndarray:
    """(clients, 3) rows for training, validation and test."""
    if isinstance(clients, Population):
        return clients.sizes
    found = [(c.n, len(c.val), len(c.test)) for c in clients.values()]
    return np.array(found, np.int64).reshape(-1, 3)


def is_weighted(clients: Clients) -> bool:
    """Whether rows have weights."""
    if isinstance(clients, Population):
        return clients.weighted
    return any(c.weighted for c in clients.values())


def some_of(clients: Clients, most: int = 1000) -> Iterator[tuple[str, ClientData]]:
    """All clients of a dict; of a population at most so many, evenly spaced: what is checked or counted of every
    client of a dict is checked of these."""
    names = names_of(clients)
    many = min(most, len(names)) if isinstance(clients, Population) else len(names)
    for i in range(many):
        client = names[i * len(names) // many]
        yield client, clients[client]
