"""Each client's part of shared arrays, made when it is asked for, and populations of such clients.

Rows are sorted by client and part; a client is a place in a list of offsets. Arrays may be memory-mapped files.
Knows offsets and views. Does not know how rows came into their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from motet.client import Batch, ClientData, LazyRows
from motet.client.population import MANY, Population, SortedNames

Parts = tuple[Batch | LazyRows, Batch | LazyRows, Batch | LazyRows]  # train, val, test
V = TypeVar("V")
_AT_ONCE = 64 << 20  # bytes that are copied at a time


class ViewsOf(Sequence[Parts]):
    """Parts of every client; `rows(start, end)` gives those of one part."""

    def __init__(self, counts: np.ndarray, rows: Callable[[int, int], Batch | LazyRows]) -> None:
        self.counts, self.rows = counts, rows  # (clients, 3)
        self.ends = np.cumsum(counts.reshape(-1))

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, at: int) -> Parts: ...
    @overload
    def __getitem__(self, at: slice) -> list[Parts]: ...
    def __getitem__(self, at: int | slice) -> Parts | list[Parts]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        ends = self.ends[3 * place : 3 * place + 3].tolist()
        starts = [e - n for e, n in zip(ends, self.counts[place].tolist(), strict=True)]
        train, val, test = (self.rows(s, e) for s, e in zip(starts, ends, strict=True))
        return train, val, test


def batches(x: Tensor, y: Tensor, weight: Tensor | None, counts: np.ndarray) -> ViewsOf:
    """Views of one tensor of examples, one of targets and one of weights, which are 1 where rows have none."""
    ones = torch.ones(int(counts.max(initial=0))) if weight is None else weight

    def rows(start: int, end: int) -> Batch:
        live = ones[: end - start] if weight is None else weight[start:end]
        return Batch(x[start:end], y[start:end], live)

    return ViewsOf(counts, rows)


def lazy_rows(x: Tensor, y: Tensor, at: Tensor, counts: np.ndarray) -> ViewsOf:
    """Rows of shared arrays that are copied when they are taken; `at` says which, sorted by client and part."""
    return ViewsOf(counts, lambda start, end: LazyRows(x, y, at[start:end]))


def clients_of(
    names: Sequence[str],
    which: np.ndarray,
    one: Callable[[int], ClientData],
    counts: np.ndarray,
    weighted: bool,
    digest: Callable[[], str],
) -> Mapping[str, ClientData]:
    """Some of the clients by name: a dict, or a population where there are many; `one` makes the client at a place."""
    places = np.flatnonzero(which)
    if len(places) < MANY:
        return {names[i]: one(i) for i in places.tolist()}
    order = places[np.argsort(np.array(names, object)[places], kind="stable")]
    known = SortedNames([names[i] for i in order.tolist()])
    return Population(known, counts[order], lambda i: one(int(order[i])), digest(), weighted)


def digest_of(*arrays: np.ndarray | None, words: Sequence[str] = ()) -> str:
    """sha256 of arrays as they lie in memory or in their files."""
    found = hashlib.sha256("\x1f".join(words).encode())
    for array in arrays:
        found.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode())
        for some in () if array is None else np.array_split(array, 1 + array.nbytes // _AT_ONCE):
            found.update(np.ascontiguousarray(some).view(np.uint8).data)
    return found.hexdigest()


class SameForAll(Mapping[str, V]):
    """One value under every name."""

    def __init__(self, names: Sequence[str], value: V) -> None:
        self.names, self.value = names, value

    def __getitem__(self, name: str) -> V:
        if name not in self.names:
            raise KeyError(name)
        return self.value

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def by_name(names: Sequence[str], values: Sequence[Any]) -> Mapping[str, Any]:
    """Values of clients by name; one value that many share is held once."""
    if len(values) >= MANY and all(v is values[0] for v in values):
        return SameForAll(SortedNames(sorted(names)), values[0])
    return dict(zip(names, values, strict=True)) if len(values) else {}
