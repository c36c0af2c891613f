"""How homes hold their rows: gathered in one block, filled, scaled, and seen through views.

Knows arrays and statistics. Does not know how it was decided whose a row is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from motet.client import Batch, ClientData, Column, LazyRows
from motet.data.federated import (
    LOCAL,
    PARTS,
    DataError,
    FederatedData,
    Pool,
    Rows,
    Scaler,
)

_TRAIN = PARTS.index("train")


@dataclass(frozen=True)
class Partition:
    """Which client and which part each row goes to; a row may go to several."""

    row: np.ndarray  # (n,) its place in the pool
    who: np.ndarray  # (n,) the number of its client
    part: np.ndarray  # (n,) train, val or test, as numbers
    clients: tuple[str, ...]
    keep: np.ndarray  # (clients,) has training rows
    held: np.ndarray  # (clients,) takes no part in training
    proxy: np.ndarray  # places of the rows that the server chooses by
    server_test: np.ndarray  # places of the rows that the server is tested on
    columns: np.ndarray | None = None  # (clients, columns) who holds which; None: everyone holds all

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows by client and part, and how many of each: (n,), (clients, 3)."""
        key = self.who * LOCAL + self.part
        at = self.row if (key[1:] >= key[:-1]).all() else self.row[np.argsort(key, kind="stable")]
        return at, np.bincount(key, minlength=LOCAL * len(self.clients)).reshape(-1, LOCAL)

    def columns_at(self, client: int, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns as one client has them."""
        if self.columns is None:
            return columns
        held = self.columns[client].tolist()
        return tuple(replace(c, here=h) for c, h in zip(columns, held, strict=True))


@dataclass(frozen=True)
class RowBlock:
    """All rows that clients hold, sorted by client and part, and the server's."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray  # (clients, 3) rows in each part
    learned: np.ndarray  # (rows,) training rows of clients that take part: what statistics are made of
    proxy: Rows | None
    server_test: Rows | None

    @property
    def ends(self) -> np.ndarray:
        """Where each client's rows end."""
        return np.cumsum(self.counts.sum(1))

    def with_x(self, f: Callable[[np.ndarray], np.ndarray], x: np.ndarray | None = None) -> RowBlock:
        """All examples changed by f; the clients' ones given as x if they are changed otherwise."""
        proxy, server_test = (r and (f(r[0]), r[1]) for r in (self.proxy, self.server_test))
        return replace(self, x=f(self.x) if x is None else x, proxy=proxy, server_test=server_test)

    def with_y(self, f: Callable[[np.ndarray], np.ndarray]) -> RowBlock:
        proxy, server_test = (r and (r[0], f(r[1])) for r in (self.proxy, self.server_test))
        return replace(self, y=f(self.y), proxy=proxy, server_test=server_test)


@dataclass(frozen=True)
class BuiltClients:
    """What goes into homes: three parts for each client, and the server's two."""

    parts: Sequence[tuple[Batch | LazyRows, Batch | LazyRows, Batch | LazyRows]]
    proxy: Batch | LazyRows | None
    server_test: Batch | LazyRows | None
    target: Scaler = field(default_factory=lambda: Scaler(np.zeros(()), np.ones(())))
    rulers: list[Scaler] = field(default_factory=list)  # of each client, if features were standardised
    missing: dict[str, int] = field(default_factory=dict)


def lay_out(name: str, pool: Pool, partition: Partition, scale: str) -> FederatedData:
    """A federation whose homes are views of one tensor, or draw from shared bytes."""
    wanted = usable(scale, pool)
    found = (
        lazy_parts(pool, partition) if pool.x.dtype == np.uint8 else build_clients(pool, partition, wanted)
    )
    clients_data = [
        ClientData(*parts, partition.columns_at(i, pool.columns), pool.augment)
        for i, parts in enumerate(found.parts)
    ]
    return FederatedData(
        name=name,
        clients_data={
            c: clients_data[i]
            for i, c in enumerate(partition.clients)
            if partition.keep[i] and not partition.held[i]
        },
        unseen={c: clients_data[i] for i, c in enumerate(partition.clients) if partition.held[i]},
        kind=pool.kind,
        outputs=len(pool.classes) if pool.kind == "classes" else 1,
        classes=pool.classes,
        columns=pool.columns,
        shape=tuple(pool.x.shape[1:]),
        scale=float(found.target.spread),
        offset=float(found.target.middle),
        proxy=found.proxy,
        server_test=found.server_test,
        rulers=dict(zip(partition.clients, found.rulers, strict=True)) if found.rulers else {},
        pixels=pool.pixels,
        symbols=pool.x.dtype == np.uint8 and pool.pixels is None,
        exact=pool.exact,
        missing=found.missing,
        digest=pool.digest,
    )


def lazy_parts(pool: Pool, partition: Partition) -> BuiltClients:
    """Shelves of shared bytes; nothing is copied but the places of rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file is mapped for reading, and nobody writes
        x, y = torch.from_numpy(pool.x), torch.from_numpy(np.asarray(pool.y, np.int64))
    at, counts = partition.sorted()
    ends = np.cumsum(counts.reshape(-1))[:-1]
    shelves = [LazyRows(x, y, torch.from_numpy(rows)) for rows in np.split(at, ends)]
    proxy, server_test = (
        LazyRows(x, y, torch.from_numpy(r)) if len(r) else None
        for r in (partition.proxy, partition.server_test)
    )
    return BuiltClients(
        list(zip(shelves[::3], shelves[1::3], shelves[2::3], strict=True)), proxy, server_test
    )


def build_clients(pool: Pool, partition: Partition, scale: str) -> BuiltClients:
    """Views of one block of rows, which are filled and scaled."""
    block = gather(pool, partition)
    missing = count_missing(block, partition) if pool.fill else {}
    block, rulers = standardise(block, scale, pool)
    block, target = standardise_target(blanked(block, partition), pool)
    real = np.float64 if pool.exact else np.float32
    proxy, server_test = (
        r and Batch.of(tensor(r[0], real), tensor(r[1], real)) for r in (block.proxy, block.server_test)
    )
    return BuiltClients(views(block, real), proxy, server_test, target, rulers, missing)


def gather(pool: Pool, partition: Partition) -> RowBlock:
    """The rows in their final order; nothing is copied if they already stand in it."""
    at, counts = partition.sorted()
    parts = np.repeat(np.tile(np.arange(LOCAL), len(counts)), counts.reshape(-1))
    taught = (parts == _TRAIN) & ~np.repeat(partition.held, counts.sum(1))
    proxy = _join(_some(pool, partition.proxy), pool.proxy)
    server_test = _join(_some(pool, partition.server_test), pool.server_test)
    return RowBlock(take(pool.x, at), take(pool.y, at), counts, taught, proxy, server_test)


def count_missing(block: RowBlock, partition: Partition) -> dict[str, int]:
    """How many cells each client misses; nothing for those that miss none."""
    holes = np.isnan(block.x.reshape(len(block.x), -1)).sum(1)
    ends = block.ends
    sums = np.diff(np.concatenate([[0], holes.cumsum()])[ends], prepend=0)
    return {c: int(n) for c, n in zip(partition.clients, sums, strict=True) if n}


def blanked(block: RowBlock, partition: Partition) -> RowBlock:
    """Columns that a client does not hold are zero in its rows."""
    if partition.columns is None:
        return block
    x, ends = block.x.copy(), block.ends
    for held, start, end in zip(partition.columns, [0, *ends[:-1]], ends, strict=True):
        x[start:end, ~held] = 0
    return replace(block, x=x)


def standardise_target(block: RowBlock, pool: Pool) -> tuple[RowBlock, Scaler]:
    if pool.kind == "classes" or pool.exact:
        return block, Scaler(np.zeros(()), np.ones(()))
    ruler = Scaler.of(block.y[block.learned])
    return block.with_y(ruler.apply), ruler


def take(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Some rows: a view if they are the first ones in order."""
    return values[: len(at)] if (at == np.arange(len(at))).all() else values[at]


def _some(pool: Pool, rows: np.ndarray) -> Rows | None:
    return (pool.x[rows], pool.y[rows]) if len(rows) else None


def _join(a: Rows | None, b: Rows | None) -> Rows | None:
    if a is None or b is None:
        return a or b
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def usable(scale: str, pool: Pool) -> str:
    """The scaling that is meant; only rows of a table can be scaled by column."""
    table = pool.x.ndim == 2 and pool.x.dtype != np.uint8
    if scale == "auto":
        return pool.scaling if table else "none"
    if scale != "none" and not table:
        raise DataError(
            f"scale = {scale!r} is for tables; one of these examples has shape {pool.x.shape[1:]}.\n"
            'hint: say scale = "none"'
        )
    return scale


def standardise(block: RowBlock, scale: str, pool: Pool) -> tuple[RowBlock, list[Scaler]]:
    """Fill what is missing with training means, then bring number columns to mean 0 and spread 1.

    Returns what each client's numbers were standardised with, nothing if they were not.
    """
    if pool.fill:
        block = filled(block)
    if scale == "none":
        return block, []
    ruler = Scaler.of(block.x[block.learned], pool.columns)
    if scale == "federation":
        return block.with_x(ruler.apply), [ruler] * len(block.counts)
    x, rulers = by_client(block, pool.columns, ruler)
    return block.with_x(ruler.apply, x), rulers


def filled(block: RowBlock) -> RowBlock:
    rows = block.x[block.learned]
    there = ~np.isnan(rows)
    mean = np.where(there, rows, 0).sum(0) / np.maximum(there.sum(0), 1)
    return block.with_x(lambda x: np.where(np.isnan(x), mean, x))


def by_client(
    block: RowBlock, columns: tuple[Column, ...], everyones: Scaler
) -> tuple[np.ndarray, list[Scaler]]:
    """Every client's rows, standardised with its own training rows, and what they were standardised with."""
    x, start = np.empty(block.x.shape, np.float32), 0
    rulers = []
    for train, val, test in block.counts.tolist():
        end = start + train + val + test
        rulers.append(Scaler.of(block.x[start : start + train], columns) if train else everyones)
        x[start:end] = rulers[-1].apply(block.x[start:end])
        start = end
    return x, rulers


def tensor(values: np.ndarray, real: type = np.float32) -> Tensor:
    """`real` or int64, in one piece, that torch may write to."""
    kind = real if values.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.require(values, kind, ["C", "W"]))


def views(block: RowBlock, real: type = np.float32) -> list[tuple[Batch, Batch, Batch]]:
    """Every client's three parts: views of one tensor of examples, one of targets, one of ones."""
    sizes = block.counts.reshape(-1).tolist()
    ones = torch.ones(max(sizes))
    live = {n: ones[:n] for n in set(sizes)}
    xs, ys = torch.split(tensor(block.x, real), sizes), torch.split(tensor(block.y, real), sizes)
    batches = [Batch(x, y, live[n]) for x, y, n in zip(xs, ys, sizes, strict=True)]
    return list(zip(batches[::3], batches[1::3], batches[2::3], strict=True))
