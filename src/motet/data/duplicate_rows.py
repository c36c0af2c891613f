"""Rows that are there twice: with several clients, or in a client's training and test parts.

Knows rows as bytes and 64-bit hashes of them: of half a million rows, two that differ meet with a
probability below 1e-8. Does not know what rows mean, nor how they were divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from motet.client.data import mix_in_place

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MOST = 3  # clients that are named


@dataclass(frozen=True)
class Found:
    """How many rows are concerned, of how many clients, and the clients with the most of them."""

    rows: int
    clients: int
    most: list[tuple[str, int]]

    @classmethod
    def of(cls, which: np.ndarray, who: np.ndarray, names: Sequence[str]) -> Found:
        many = np.bincount(who[which], minlength=len(names))
        first = sorted(np.flatnonzero(many).tolist(), key=lambda i: (-many[i], names[i]))
        return cls(int(many.sum()), len(first), [(names[i], int(many[i])) for i in first[:MOST]])


@dataclass(frozen=True)
class DuplicateRows:
    """Equal rows, told by features alone and by features and target."""

    shared: Found | None  # rows that lie with two clients or more; None: it cannot be told
    shared_with_target: Found | None
    leaked: Found  # test rows that the same client trains on
    leaked_with_target: Found
    column_sets: int  # clients are compared with those that hold the same columns


@dataclass(frozen=True)
class RowHashes:
    """The hashes of some rows: of the features, and of features and target."""

    x: np.ndarray
    xy: np.ndarray
    who: np.ndarray  # the number of each row's client
    part: np.ndarray  # 0 train, 1 val, 2 test

    @classmethod
    def join(cls, many: Sequence[RowHashes]) -> RowHashes:
        return cls(*(np.concatenate([getattr(p, k) for p in many]) for k in ("x", "xy", "who", "part")))


def prints(rows: np.ndarray, y: np.ndarray, who: int, part: int) -> RowHashes:
    """Hashes of rows (n, width), which lie in one piece, and of their targets (n,)."""
    x = hashed(rows)
    n = len(rows)
    return RowHashes(x, together(x, hashed(y[:, None])), np.full(n, who, np.int32), np.full(n, part, np.int8))


def hashed(rows: np.ndarray) -> np.ndarray:
    """A 64-bit number for each row: equal for equal rows, and hardly ever otherwise."""
    rows = rows + 0.0 if rows.dtype.kind == "f" else rows  # -0 becomes 0
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    words = np.zeros((len(data), -(-data.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : data.shape[1]] = data
    words += np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _GOLDEN  # a value counts by its place
    mix_in_place(words)
    found: np.ndarray = words.sum(1, dtype=np.uint64)
    mix_in_place(found)
    return found


def together(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One hash for pairs of whole numbers."""
    both: np.ndarray = a + (b.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    mix_in_place(both)
    return both


def find(
    found: RowHashes, names: Sequence[str], columns: Sequence[int], comparable: bool = True
) -> DuplicateRows:
    """Equal rows of all clients; `columns` numbers the set of columns that each client holds."""
    kin = np.asarray(columns, np.uint64)[found.who]

    def shared(key: np.ndarray) -> Found | None:
        return Found.of(with_several(together(key, kin), found.who), found.who, names) if comparable else None

    def leaked(key: np.ndarray) -> Found:
        return Found.of(trained_on(together(key, found.who), found.part), found.who, names)

    return DuplicateRows(
        shared(found.x), shared(found.xy), leaked(found.x), leaked(found.xy), len(set(columns))
    )


def with_several(key: np.ndarray, who: np.ndarray) -> np.ndarray:
    """Which rows have a key that two clients have, or more."""
    order = np.argsort(key)
    key, owner = key[order], who[order]
    start = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    several = np.minimum.reduceat(owner, start) != np.maximum.reduceat(owner, start)
    which = np.empty(len(key), bool)
    which[order] = np.repeat(several, np.diff(np.r_[start, len(key)]))
    return which


def trained_on(key: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which test rows have a key that a training row has."""
    which: np.ndarray = part == 2
    which[which] = np.isin(key[which], key[part == 0])
    return which
