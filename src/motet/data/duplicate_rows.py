"""Duplicate rows: held by several clients, or in both the training and the test part of one client.

Knows rows as bytes and their 64-bit hashes: among half a million different rows, two have the same hash with a
probability below 1e-8. Does not know what rows mean, nor how clients got them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from motet.client.data import mix_in_place

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MOST = 3  # clients that are listed


@dataclass(frozen=True)
class Found:
    """The number of duplicates, of clients that hold some, and the clients with the most."""

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
    """Equal rows: by features alone, and by features and target."""

    shared: Found | None  # rows of two clients or more; None: clients cannot be compared
    shared_with_target: Found | None
    leaked: Found  # test rows that equal a training row of the same client
    leaked_with_target: Found
    elsewhere: Found | None  # test rows that equal, target and all, a training row of another client
    column_sets: int  # different sets of columns; only clients with the same set are compared


@dataclass(frozen=True)
class RowHashes:
    """The hashes of some rows: of the features, and of features and target."""

    x: np.ndarray
    xy: np.ndarray
    who: np.ndarray  # the index of each row's client
    part: np.ndarray  # 0 train, 1 val, 2 test

    @classmethod
    def join(cls, many: Sequence[RowHashes]) -> RowHashes:
        return cls(*(np.concatenate([getattr(p, k) for p in many]) for k in ("x", "xy", "who", "part")))


def row_hashes(rows: np.ndarray, y: np.ndarray, who: int, part: int) -> RowHashes:
    """Hashes of contiguous rows (n, width) and of their targets (n,)."""
    x, n = hashed(rows), len(rows)
    xy = pair_hash(x, hashed(y[:, None]))
    return RowHashes(x, xy, np.full(n, who, np.int32), np.full(n, part, np.int8))


def hashed(rows: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row."""
    rows = rows + 0.0 if rows.dtype.kind == "f" else rows  # -0 becomes 0
    data = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    words = np.zeros((len(data), -(-data.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : data.shape[1]] = data
    words += np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _GOLDEN  # the order of values matters
    mix_in_place(words)
    found: np.ndarray = words.sum(1, dtype=np.uint64)
    mix_in_place(found)
    return found


def pair_hash(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One hash of each pair of whole numbers."""
    both: np.ndarray = a + (b.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    mix_in_place(both)
    return both


def find(
    found: RowHashes, names: Sequence[str], columns: Sequence[int], comparable: bool = True
) -> DuplicateRows:
    """Equal rows of all clients; `columns` is the index of each client's set of columns."""
    sets = np.asarray(columns, np.uint64)[found.who]

    def shared(key: np.ndarray) -> Found | None:
        if not comparable:
            return None
        return Found.of(held_by_several(pair_hash(key, sets), found.who), found.who, names)

    def leaked(key: np.ndarray) -> Found:
        return Found.of(trained_on(pair_hash(key, found.who), found.part), found.who, names)

    other = trained_on_elsewhere(pair_hash(found.xy, sets), found.who, found.part)
    elsewhere = Found.of(other, found.who, names) if comparable else None
    return DuplicateRows(
        shared(found.x), shared(found.xy), leaked(found.x), leaked(found.xy), elsewhere, len(set(columns))
    )


def held_by_several(key: np.ndarray, who: np.ndarray) -> np.ndarray:
    """Which rows have a key that rows of two or more clients have."""
    order = np.argsort(key)
    key, owner = key[order], who[order]
    start = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    several = np.minimum.reduceat(owner, start) != np.maximum.reduceat(owner, start)
    which = np.empty(len(key), bool)
    which[order] = np.repeat(several, np.diff(np.r_[start, len(key)]))
    return which


def trained_on(key: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which test rows have the key of a training row."""
    which: np.ndarray = part == 2
    which[which] = np.isin(key[which], key[part == 0])
    return which


def trained_on_elsewhere(key: np.ndarray, who: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which test rows have the key of a training row of another client."""
    known, start, owner = owners_by_key(key[part == 0], who[part == 0])
    which: np.ndarray = part == 2
    if not len(known):
        return np.zeros_like(which)
    first, last = np.minimum.reduceat(owner, start), np.maximum.reduceat(owner, start)
    at = np.minimum(np.searchsorted(known, key[which]), len(known) - 1)
    mine = who[which]
    which[which] = (known[at] == key[which]) & ((first[at] != mine) | (last[at] != mine))
    return which


def owners_by_key(key: np.ndarray, who: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Different keys in their order, where each begins, and the owners of all rows in that order."""
    order = np.argsort(key, kind="stable")
    known, start = np.unique(key[order], return_index=True)
    return known, start, who[order]
