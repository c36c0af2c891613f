"""What a split gets (Rows), and what it returns (Assignment).

Knows rows, targets and seeds. Does not know any particular split.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from motet.client import seed_of
from motet.data.federated import DataError

REDRAWS = 100
_BINS = 10  # quantiles of a numeric target, which replace classes
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rows:
    """The rows to divide among clients."""

    rows: np.ndarray  # (n,) their indices in the pool
    y: np.ndarray  # (n,) their targets
    seed: int = 0
    owner: np.ndarray | None = None  # (n,) each row's natural client: a name, or an index into `names`
    names: tuple[str, ...] = ()
    server_test: np.ndarray = field(default_factory=lambda: _NONE)  # indices of the server's test rows
    server_test_y: np.ndarray = field(default_factory=lambda: _NONE)

    @classmethod
    def of(cls, y: np.ndarray, seed: int = 0) -> Rows:
        return cls(np.arange(len(y)), y, seed)

    def __len__(self) -> int:
        return len(self.rows)

    def generator(self, *words: object) -> np.random.Generator:
        """A random generator that depends on the seed and on `words`."""
        return generator(self.seed, *words)

    def strata(self) -> list[np.ndarray]:
        """Positions of the rows of each class, or of each quantile of a numeric target."""
        stratum = self.y if self.y.dtype.kind in "iu" else _quantile(self.y)
        order = np.argsort(stratum, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(stratum[order])) + 1)

    def assignment(self, who: np.ndarray, clients: int) -> Assignment:
        """Row i goes to client who[i]; -1: to no client."""
        some = np.flatnonzero(who >= 0)
        return Assignment(self.rows[some], who[some], client_names(clients))

    def check(self, clients: int, least: int = 1) -> None:
        """Refuse more clients than there are rows for."""
        if clients < 1:
            raise DataError(f"clients is {clients}; expected at least 1")
        if len(self) < clients * least:
            raise DataError(
                f"{len(self)} rows cannot be divided among {clients} clients with at least {least} each.\n"
                f"hint: take at most {len(self) // max(least, 1)} clients"
            )


@dataclass(frozen=True)
class Assignment:
    """Row row[i] of the pool goes to client who[i]."""

    row: np.ndarray
    who: np.ndarray
    clients: tuple[str, ...]
    part: np.ndarray | None = None  # its part, if the split decides it; -1: not decided
    same: bool = False  # all clients hold the same rows, in the same parts


def generator(*words: object) -> np.random.Generator:
    """A random generator that depends on these words alone."""
    return np.random.Generator(np.random.PCG64(seed_of(*words)))


def client_names(clients: int) -> tuple[str, ...]:
    """Names whose alphabetical order is the clients' order.

    >>> client_names(2), client_names(11)[-1]
    (('client-0', 'client-1'), 'client-10')
    """
    width = len(str(clients - 1))
    return tuple(f"client-{i:0{width}}" for i in range(clients))


def positive(split: str, **values: float) -> None:
    """Refuse numbers that are not above 0, all at once."""
    if wrong := [f"{k} is {v}" for k, v in values.items() if not v > 0]:
        raise DataError(f"split {split!r}: {', '.join(wrong)}; expected more than 0")


def never(split: str, rule: str) -> DataError:
    """The error if no draw met a rule."""
    return DataError(
        f"split {split!r}: none of {REDRAWS} draws {rule}.\n"
        "hint: take fewer clients, a larger alpha or fewer rows for each client"
    )


def _quantile(y: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.quantile(y, np.arange(1, _BINS) / _BINS), y, side="right")
