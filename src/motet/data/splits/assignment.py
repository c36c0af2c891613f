"""What a split sees, and what it answers with.

Knows rows, targets and seeds. Does not know any particular split.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from motet.client import seed_of
from motet.data.federated import DataError

REDRAWS = 100
_BINS = 10  # quantiles of a target that is a number: they take the place of classes
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Rows:
    """The rows that are to be divided among clients."""

    rows: np.ndarray  # (n,) their places in the pool
    y: np.ndarray  # (n,) their targets
    seed: int = 0
    owner: np.ndarray | None = None  # (n,) each row's natural client: a name, or an index into `names`
    names: tuple[str, ...] = ()
    server_test: np.ndarray = field(
        default_factory=lambda: _NONE
    )  # places of the rows of an official test set
    server_test_y: np.ndarray = field(default_factory=lambda: _NONE)

    @classmethod
    def of(cls, y: np.ndarray, seed: int = 0) -> Rows:
        return cls(np.arange(len(y)), y, seed)

    def __len__(self) -> int:
        return len(self.rows)

    def generator(self, *words: object) -> np.random.Generator:
        """A generator that depends on the seed and on all that was asked."""
        return np.random.Generator(np.random.PCG64(seed_of(self.seed, *words)))

    def strata(self) -> list[np.ndarray]:
        """Positions of the rows of each class; quantiles stand for classes of numbers."""
        stratum = self.y if self.y.dtype.kind in "iu" else _quantile(self.y)
        order = np.argsort(stratum, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(stratum[order])) + 1)

    def assignment(self, who: np.ndarray, clients: int) -> Assignment:
        """The answer, if row i goes to client who[i]; -1 is nobody."""
        some = np.flatnonzero(who >= 0)
        return Assignment(self.rows[some], who[some], client_names(clients))

    def check(self, clients: int, least: int = 1) -> None:
        """Refuse what cannot be."""
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
    part: np.ndarray | None = None  # its part, where the split decides it; -1: to be cut
    same: bool = False  # everyone holds the same rows, and they are cut alike for all


def client_names(clients: int) -> tuple[str, ...]:
    """Names whose alphabetical order is the clients' order.

    >>> client_names(2), client_names(11)[-1]
    (('client-0', 'client-1'), 'client-10')
    """
    width = len(str(clients - 1))
    return tuple(f"client-{i:0{width}}" for i in range(clients))


def positive(split: str, **values: float) -> None:
    """Refuse numbers that are not above zero, all at once."""
    if wrong := [f"{k} is {v}" for k, v in values.items() if not v > 0]:
        raise DataError(f"split {split!r}: {', '.join(wrong)}; expected more than 0")


def never(split: str, rule: str) -> DataError:
    """The error of a draw whose rule was never met."""
    return DataError(
        f"split {split!r}: none of {REDRAWS} draws {rule}.\n"
        "hint: take fewer clients or a larger alpha, or ask for less"
    )


def _quantile(y: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.quantile(y, np.arange(1, _BINS) / _BINS), y, side="right")
