"""The rows of all clients in one block: missing cells filled, columns standardised, and a view for each client.

Knows arrays and statistics. Does not know how it was decided which client holds a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from motet.client import Batch, ClientData, Column, LazyRows
from motet.data.client_views import ViewsOf, batches, by_name, clients_of, digest_of, lazy_rows
from motet.data.federated import (
    LOCAL,
    PARTS,
    DataError,
    FederatedData,
    Pool,
    Rows,
    Scaler,
)
from motet.data.fill_missing import fill_values, mean_of_parties, shared, totals, with_fallback

TRAIN = PARTS.index("train")


@dataclass(frozen=True)
class Partition:
    """Which client and which part each row goes to; a row may go to several."""

    row: np.ndarray  # (n,) its index in the pool
    who: np.ndarray  # (n,) the index of its client
    part: np.ndarray  # (n,) train, val or test, as index into PARTS
    clients: tuple[str, ...]
    keep: np.ndarray  # (clients,) whether it has training rows
    held: np.ndarray  # (clients,) whether it never takes part in training
    proxy: np.ndarray  # indices of the rows of the server's proxy set
    server_test: np.ndarray  # indices of the rows of the server's test set
    columns: np.ndarray | None = None  # (clients, columns) which columns each holds; None: all

    def only(self, staying: np.ndarray) -> Partition:
        """The same without some clients, whose rows are out already."""
        if staying.all():
            return self
        place = np.cumsum(staying) - 1
        names = tuple(c for c, here in zip(self.clients, staying, strict=True) if here)
        columns = None if self.columns is None else self.columns[staying]
        keep, held = self.keep[staying], self.held[staying]
        return replace(self, who=place[self.who], clients=names, keep=keep, held=held, columns=columns)

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows sorted by client and part (n,), and how many of each (clients, 3)."""
        key = self.who * LOCAL + self.part
        at = self.row if (key[1:] >= key[:-1]).all() else self.row[np.argsort(key, kind="stable")]
        return at, np.bincount(key, minlength=LOCAL * len(self.clients)).reshape(-1, LOCAL)

    def columns_at(self, client: int, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns, marked as held by a client or not."""
        if self.columns is None:
            return columns
        held = self.columns[client].tolist()
        return tuple(replace(c, here=h) for c, h in zip(columns, held, strict=True))


@dataclass(frozen=True)
class RowBlock:
    """All rows of clients, sorted by client and part, and the server's rows."""

    x: np.ndarray
    y: np.ndarray
    counts: np.ndarray  # (clients, 3) rows in each part
    learned: np.ndarray  # (rows,) training rows of clients that take part; statistics use these alone
    proxy: Rows | None
    server_test: Rows | None
    weight: np.ndarray | None = None  # (rows,) of mean 1 over the rows of `learned`; None: all count alike

    @property
    def ends(self) -> np.ndarray:
        """Where each client's rows end."""
        return np.cumsum(self.counts.sum(1))

    def with_x(self, f: Callable[[np.ndarray], np.ndarray], x: np.ndarray | None = None) -> RowBlock:
        """All examples changed by f; those of clients are replaced by x if it is given."""
        proxy, server_test = (r and (f(r[0]), r[1]) for r in (self.proxy, self.server_test))
        return replace(self, x=f(self.x) if x is None else x, proxy=proxy, server_test=server_test)

    def with_y(self, f: Callable[[np.ndarray], np.ndarray]) -> RowBlock:
        proxy, server_test = (r and (r[0], f(r[1])) for r in (self.proxy, self.server_test))
        return replace(self, y=f(self.y), proxy=proxy, server_test=server_test)


@dataclass(frozen=True)
class BuiltClients:
    """Train, val and test of each client, and the server's two sets."""

    parts: ViewsOf
    proxy: Batch | LazyRows | None
    server_test: Batch | LazyRows | None
    target: Scaler = field(default_factory=lambda: Scaler(np.zeros(()), np.ones(())))
    scalers: list[Scaler] = field(default_factory=list)  # of each client, if features were standardised
    missing: dict[str, int] = field(default_factory=dict)
    fills: dict[str, np.ndarray] = field(default_factory=dict)


def lay_out(name: str, pool: Pool, partition: Partition, scale: str) -> FederatedData:
    """A federation whose clients hold views of one tensor, or read rows of shared bytes when they need them."""
    wanted = scaling_of(scale, pool)
    lazy = pool.x.dtype == np.uint8
    found = lazy_parts(pool, partition) if lazy else build_clients(pool, partition, wanted)
    weighted = pool.weight is not None

    def one(i: int) -> ClientData:
        return ClientData(*found.parts[i], partition.columns_at(i, pool.columns), pool.augment, weighted)

    some = partition.keep & ~partition.held, partition.held
    made = (one, found.parts.counts, weighted, partial(digest_of_rows, pool, partition, wanted))
    here, unseen = (clients_of(partition.clients, which, *made) for which in some)
    return FederatedData(
        name=name,
        clients_data=here,
        unseen=unseen,
        kind=pool.kind,
        outputs=len(pool.classes) if pool.kind == "classes" else 1,
        classes=pool.classes,
        columns=pool.columns,
        shape=tuple(pool.x.shape[1:]),
        scale=float(found.target.spread),
        offset=float(found.target.middle),
        proxy=found.proxy,
        server_test=found.server_test,
        rulers=by_name(partition.clients, found.scalers),
        pixels=pool.pixels,
        symbols=lazy and pool.pixels is None,
        codes=pool.codes,
        exact=pool.exact,
        missing=found.missing,
        digest=pool.digest,
        fills=found.fills,
        reading=pool.reading,
    )


def digest_of_rows(pool: Pool, partition: Partition, scale: str) -> str:
    """Of clients' rows, and of their names, by which cohorts and orders of rows are drawn."""
    rows = (pool.weight, partition.row, partition.who, partition.part, partition.columns)
    words = (pool.digest, scale, *partition.clients)
    return digest_of(*(() if pool.digest else (pool.x, pool.y)), *rows, words=words)


def lazy_parts(pool: Pool, partition: Partition) -> BuiltClients:
    """Lazy rows of shared bytes: only the indices of rows are copied."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the mapped file is read-only; nothing is written
        x, y = torch.from_numpy(pool.x), torch.from_numpy(np.asarray(pool.y, np.int64))
    at, counts = partition.sorted()
    proxy, server_test = (
        LazyRows(x, y, torch.from_numpy(r)) if len(r) else None
        for r in (partition.proxy, partition.server_test)
    )
    return BuiltClients(lazy_rows(x, y, torch.from_numpy(at), counts), proxy, server_test)


def build_clients(pool: Pool, partition: Partition, scale: str) -> BuiltClients:
    """Views of one block of rows, with missing cells filled and columns standardised."""
    block, absent = gather(pool, partition), absent_cells(pool, partition)
    missing, fills = {}, np.zeros((0, 0))
    if pool.fill:
        missing = count_missing(block, absent, partition)
        fills = fills_of(block, pool)
        block = filled(block, fills, absent)
    block, scalers = standardise(block, scale, pool)
    block, target = standardise_target(without_absent_columns(block, partition), pool)
    real = np.float64 if pool.exact else np.float32
    of_y = np.float64 if pool.kind == "survival" and loses_order(pool.y) else real
    proxy, server_test = (
        r and Batch(tensor(r[0], real), tensor(r[1], of_y), server_weights(pool, rows, len(r[0])))
        for r, rows in ((block.proxy, partition.proxy), (block.server_test, partition.server_test))
    )
    by_client = dict(zip(partition.clients, fills, strict=True)) if len(fills) else {}
    return BuiltClients(views(block, real, of_y), proxy, server_test, target, scalers, missing, by_client)


def absent_cells(pool: Pool, partition: Partition) -> np.ndarray | None:
    """(rows, columns) cells of columns that a row's client does not hold, in the order of the block."""
    if pool.held is None or partition.columns is None:
        return None
    return np.repeat(~partition.columns, partition.sorted()[1].sum(1), axis=0)


def gather(pool: Pool, partition: Partition) -> RowBlock:
    """The rows sorted by client and part; nothing is copied if they are in this order already."""
    at, counts = partition.sorted()
    parts = np.repeat(np.tile(np.arange(LOCAL), len(counts)), counts.reshape(-1))
    learned = (parts == TRAIN) & ~np.repeat(partition.held, counts.sum(1))
    proxy = _join(_some(pool, partition.proxy), pool.proxy)
    server_test = _join(_some(pool, partition.server_test), pool.server_test)
    weight = None if pool.weight is None else evened(take(pool.weight, at), learned)
    return RowBlock(take(pool.x, at), take(pool.y, at), counts, learned, proxy, server_test, weight)


def evened(weight: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """Weights of mean 1 over the training rows, in single precision: equal weights become 1."""
    return np.asarray(weight / weight[learned].mean(dtype=np.float64), np.float32)


def server_weights(pool: Pool, rows: np.ndarray, many: int) -> Tensor:
    """(many,) of the server's own rows, of mean 1. Rows that a data set gives it have no weights."""
    if pool.weight is None or len(rows) != many:
        return torch.ones(many)
    return torch.from_numpy(evened(pool.weight[rows], np.ones(many, bool)))


def count_missing(block: RowBlock, absent: np.ndarray | None, partition: Partition) -> dict[str, int]:
    """The number of missing cells of each client that has some."""
    gaps = np.isnan(block.x)
    gaps = gaps if absent is None else gaps & ~absent
    holes = gaps.reshape(len(block.x), -1).sum(1)
    ends = block.ends
    sums = np.diff(np.concatenate([[0], holes.cumsum()])[ends], prepend=0)
    return {c: int(n) for c, n in zip(partition.clients, sums, strict=True) if n}


def without_absent_columns(block: RowBlock, partition: Partition) -> RowBlock:
    """Columns that a client does not hold are zero in its rows."""
    if partition.columns is None:
        return block
    x, ends = block.x.copy(), block.ends
    for held, start, end in zip(partition.columns, [0, *ends[:-1]], ends, strict=True):
        x[start:end, ~held] = 0
    return replace(block, x=x)


def standardise_target(block: RowBlock, pool: Pool) -> tuple[RowBlock, Scaler]:
    if pool.kind != "numbers" or pool.exact:  # times of survival are compared with each other only
        return block, Scaler(np.zeros(()), np.ones(()))
    scaler = Scaler.of(block.y[block.learned])
    return block.with_y(scaler.apply), scaler


def take(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Some rows; a view if they are the first rows in order."""
    return values[: len(at)] if (at == np.arange(len(at))).all() else values[at]


def _some(pool: Pool, rows: np.ndarray) -> Rows | None:
    return (pool.x[rows], pool.y[rows]) if len(rows) else None


def _join(a: Rows | None, b: Rows | None) -> Rows | None:
    if a is None or b is None:
        return a or b
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def scaling_of(scale: str, pool: Pool) -> str:
    """The scaling with `auto` resolved; only tables can be standardised by column."""
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
    """Standardise the columns of numbers: mean 0, deviation 1.

    Returns the scaler of each client too, or no scalers if nothing was standardised.
    """
    if scale == "none":
        return block, []
    scaler = scaler_of(block.x[block.learned], pool)
    if scale == "federation":
        return block.with_x(scaler.apply), [scaler] * len(block.counts)
    x, scalers = by_client(block, pool, scaler)
    return block.with_x(scaler.apply, x), scalers


def scaler_of(rows: np.ndarray, pool: Pool) -> Scaler:
    return Scaler.of(rows, ddof=1) if pool.sample_deviation else Scaler.of(rows, pool.columns)


def fills_of(block: RowBlock, pool: Pool) -> np.ndarray:
    """(clients, columns) what fills each client's missing cells."""
    starts = block.ends - block.counts.sum(1)
    train = [block.x[s : s + n] for s, n in zip(starts, block.counts[:, TRAIN], strict=True)]
    taking_part = [x for x, s in zip(train, starts, strict=True) if len(x) and block.learned[s]]
    mean = mean_of_parties([totals(x) for x in taking_part])
    whole = mean
    if pool.missing in ("median", "most_frequent"):
        whole = with_fallback(fill_values(block.x[block.learned], pool.columns, pool.missing), mean)
    if pool.missing_by == "federation":
        return np.tile(whole, (len(train), 1))
    return np.stack([with_fallback(fill_values(x, pool.columns, pool.missing), mean) for x in train])


def filled(block: RowBlock, fills: np.ndarray, absent: np.ndarray | None) -> RowBlock:
    """Rows without missing cells; those of columns that a client does not hold stay NaN for now."""
    rows, every = np.repeat(fills, block.counts.sum(1), axis=0), shared(fills)
    gaps = np.isnan(block.x)
    x = np.where(gaps if absent is None else gaps & ~absent, rows, block.x)
    return block.with_x(lambda v: np.where(np.isnan(v), every, v), x)


def by_client(block: RowBlock, pool: Pool, of_all: Scaler) -> tuple[np.ndarray, list[Scaler]]:
    """Every client's rows, standardised by its own training rows, and the scalers."""
    x, start = np.empty(block.x.shape, np.float32), 0
    scalers = []
    for train, val, test in block.counts.tolist():
        end = start + train + val + test
        scalers.append(scaler_of(block.x[start : start + train], pool) if train else of_all)
        x[start:end] = scalers[-1].apply(block.x[start:end])
        start = end
    return x, scalers


def tensor(values: np.ndarray, real: type = np.float32) -> Tensor:
    """As `real` or int64, contiguous, and writable for torch."""
    kind = real if values.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.require(values, kind, ["C", "W"]))


def loses_order(times: np.ndarray) -> bool:
    """Whether times that differ would be equal in single precision, say dates in seconds: Cox's loss and the
    concordance compare them."""
    different = np.unique(np.abs(times))
    return len(np.unique(different.astype(np.float32))) < len(different)


def views(block: RowBlock, real: type = np.float32, of_y: type = np.float32) -> ViewsOf:
    """Train, val and test of every client: views of one tensor of examples, one of targets, and one of weights."""
    weight = None if block.weight is None else torch.from_numpy(block.weight)
    return batches(tensor(block.x, real), tensor(block.y, of_y), weight, block.counts)
