"""A federation in numbers: sizes, labels, features, skew and duplicate rows of its clients.

Clients are read one at a time, in blocks of rows; a few numbers for each row stay in memory.
"All clients" are those that take part and those that are held out of training. Features and targets are in the units
they had before they were standardised. Knows federations. Does not know how a survey is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch

from motet.client import Batch, ClientData
from motet.client.population import Population, some_of
from motet.data.duplicate_rows import DuplicateRows, RowHashes, find, row_hashes, trained_on
from motet.data.federated import FederatedData
from motet.data.skew import (
    Moments,
    binned,
    decile_edges,
    distance,
    entropy,
    gini,
)
from motet.survival import survival_curve
from motet.text import LISTED

MOST = 3  # columns that are listed for a client
_MOST_BYTES = 1 << 28  # of features that are looked at before a run
_ENOUGH = 10  # rows beyond one for each class: fewer fit a target by chance
_NEAR = 1e-5  # of a column's range
_POINTS = 201  # of a curve of survival
_STEP = 1 << 20  # bytes of features in a block: they fit into the processor's cache
_QUANTILES = {"min": 0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95, "max": 1}


@dataclass(frozen=True)
class Deviation:
    """A column in which a client differs from all clients."""

    column: str
    mean: float
    std: float
    away: float  # (client's mean - everyone's mean) / everyone's standard deviation


@dataclass(frozen=True)
class ClientSurvey:
    """One client in numbers."""

    client: str
    unseen: bool  # never takes part in training
    train: int
    val: int
    test: int
    counts: list[int]  # rows of each class, or of each bin of numbers
    entropy: float  # of the counts, in bits
    evenness: float  # entropy as a share of the largest possible one
    distance: float  # Jensen-Shannon distance of the counts to those of all clients
    target: dict[str, float]  # numbers and times: mean, std and quantiles
    columns: int  # number of columns that it holds
    apart: list[Deviation]  # tables: columns in which it differs most from all clients, the largest first
    channels: list[float]  # images: mean of each channel, from 0 to 1
    missing: int  # cells that were empty before they were filled
    survival: list[
        float | None
    ]  # survival: the share without event at each of the survey's times; None: not watched

    @property
    def rows(self) -> int:
        return self.train + self.val + self.test


@dataclass(frozen=True)
class Range:
    """Mean, smallest and largest value over clients, and the clients that have them."""

    mean: float
    min: float
    max: float
    least: str
    most: str

    @classmethod
    def of(cls, clients: list[ClientSurvey], figure: str) -> Range:
        values = [float(getattr(c, figure)) for c in clients]
        low, high = int(np.argmin(values)), int(np.argmax(values))
        mean = float(np.mean(values))
        return cls(mean, values[low], values[high], clients[low].client, clients[high].client)


@dataclass(frozen=True)
class Survey:
    """A federation in numbers."""

    name: str
    kind: str  # classes | numbers | survival
    features: str  # table | images | symbols | other
    shape: tuple[int, ...]  # of one example
    columns: int  # of a table; 0 otherwise
    labels: list[str]  # names of the classes, or of the bins of numbers
    counts: list[int]  # rows of all clients by label
    target: dict[str, float]  # numbers: of all clients
    clients: list[ClientSurvey]  # those that take part, then the unseen ones
    rows: Range
    entropy: Range
    evenness: Range
    distance: Range
    gini: float  # of the clients' rows
    duplicates: DuplicateRows
    missing: int
    proxy: int | None  # rows of the server
    server_test: int | None
    notes: list[str]
    times: list[float]  # survival: times at which curves are given; empty otherwise
    survival: list[float | None]  # survival: of all clients


@dataclass
class Read:
    """What stays in memory of a client's rows."""

    y: np.ndarray  # class indices, or numbers in their original unit
    held: np.ndarray  # which columns of a table the client holds
    moments: Moments | None  # of the columns of a table, or of the values of an image
    hashes: list[RowHashes]


def of_some(federated: FederatedData) -> FederatedData:
    """The same with at most 1,000 of very many clients."""
    parts = federated.clients_data, federated.unseen
    if not any(isinstance(p, Population) for p in parts):
        return federated
    here, unseen = (dict(some_of(p)) for p in parts)
    note = f"{len(here) + len(unseen):,} of {sum(map(len, parts)):,} clients were read, evenly spaced"
    return replace(federated, clients_data=here, unseen=unseen, notes=[*federated.notes, note])


def survey(federated: FederatedData, test: bool = True) -> Survey:
    """Read every client's rows once; of a population, those of some clients, evenly spaced. `test`: test rows too;
    without them they are only counted."""
    federated = of_some(federated)
    clients_data = {**federated.clients_data, **federated.unseen}
    features = kind_of_features(federated)
    reads = [read(federated, c, h, i, features, test) for i, (c, h) in enumerate(clients_data.items())]
    labels, counts = label_counts(federated, [r.y for r in reads])
    everyone = np.concatenate([r.y for r in reads])
    times = np.linspace(0, np.abs(everyone).max(), _POINTS) if federated.kind == "survival" else np.empty(0)
    described_rows = described(federated, reads, features, times)
    clients = [
        client_survey(federated, client, mine, counts.sum(0), more)
        for client, mine, more in zip(clients_data, counts, described_rows, strict=True)
    ]
    some = [] if too_large(federated) else clients_data.values()
    parts = [[d.train.take(), d.val.take(), *([d.test.take()] if test else [])] for d in some]
    target_columns = columns_like_target(federated, parts)
    return Survey(
        name=federated.name, kind=federated.kind, features=features, shape=tuple(federated.shape),
        columns=federated.shape[0] if features == "table" else 0, labels=labels,
        counts=counts.sum(0).tolist(), target=summary(federated, everyone), times=times.tolist(),
        survival=curve(everyone, times),
        clients=clients, rows=Range.of(clients, "rows"), entropy=Range.of(clients, "entropy"),
        evenness=Range.of(clients, "evenness"), distance=Range.of(clients, "distance"),
        gini=gini(np.array([c.rows for c in clients])), duplicates=duplicates(federated, reads),
        missing=sum(c.missing for c in clients), proxy=size(federated.proxy), server_test=size(federated.server_test),
        notes=[*federated.notes, *target_columns],
    )  # fmt: skip


def client_survey(
    federated: FederatedData, client: str, mine: np.ndarray, everyones: np.ndarray, more: dict[str, Any]
) -> ClientSurvey:
    """One client in numbers, from the counts of its labels and the description of its rows."""
    client_data = federated.clients_data.get(client) or federated.unseen[client]
    bits = entropy(mine)
    return ClientSurvey(
        client=client, unseen=client in federated.unseen,
        train=len(client_data.train), val=len(client_data.val), test=len(client_data.test),
        counts=mine.tolist(), entropy=bits, evenness=float(bits / np.log2(max(len(mine), 2))),
        distance=distance(mine, everyones),
        missing=federated.missing.get(client, 0), **more,
    )  # fmt: skip


def kind_of_features(federated: FederatedData) -> str:
    first = next(iter({**federated.clients_data, **federated.unseen}.values())).train.take().x
    if len(federated.shape) == 3:
        return "images"
    if first.dtype == torch.uint8:
        return "symbols"
    return "table" if len(federated.shape) == 1 else "other"


def size(batch: Any) -> int | None:
    return None if batch is None else len(batch)


# ---- before a run ----


def worth_knowing(federated: FederatedData) -> list[str]:
    """What a person should know before they believe scores: few classes by name, test rows that are trained on,
    columns that are the target. Rows are looked at where all features have at most 256 MiB, and clients are no
    population; `survey` has no such limit."""
    names = federated.classes
    lines = [f"{len(names)} classes: {', '.join(names)}"] if 0 < len(names) <= LISTED else []
    clients_data = {**federated.clients_data, **federated.unseen} if not too_large(federated) else {}
    parts = [[d.train.take(), d.val.take(), d.test.take()] for d in clients_data.values()]
    some = exact = 0
    for i, (train, _, test) in enumerate(parts):
        hashes = [row_hashes(x, y, i, part) for part, b in ((0, train), (2, test)) for x, y in chunks(b)]
        if len(train) and len(test):
            mine = RowHashes.join(hashes)
            some += int(trained_on(mine.x, mine.part).sum())
            exact += int(trained_on(mine.xy, mine.part).sum())
    if some:
        same = f", {exact:,} of them with the same target" if exact else ""
        are = "equals a row" if some == 1 else "equal rows"
        lines.append(
            f"{some:,} of {sum(len(test) for *_, test in parts):,} test rows {are} that their client trains on{same} "
            "(motet data show names the clients)"
        )
    return [*lines, *columns_like_target(federated, parts)]


def too_large(federated: FederatedData) -> bool:
    many = [federated.clients_data, federated.unseen]
    if any(isinstance(some, Population) for some in many):
        return True
    rows = sum(len(d.train) + len(d.val) + len(d.test) for some in many for d in some.values())
    wide = 1 if federated.pixels or federated.symbols else 8 if federated.exact else 4
    return rows * int(np.prod(federated.shape)) * wide > _MOST_BYTES


def columns_like_target(federated: FederatedData, parts: Sequence[Sequence[Batch]]) -> list[str]:
    """A line on each column of a table that says the target: one value for each class, or correlation 1."""
    if len(federated.shape) != 1 or not federated.columns or not parts or federated.kind == "survival":
        return []
    clients = [*federated.clients_data.items(), *federated.unseen.items()]
    xs = []
    for (client, client_data), batches in zip(clients, parts, strict=True):
        x = np.concatenate([b.x.numpy() for b in batches]).astype(np.float64)
        if scaler := federated.rulers.get(client):
            x = x * scaler.spread + scaler.middle
        xs.append(np.where(held(federated, client_data), x, np.nan))
    x, y = np.concatenate(xs), np.concatenate([b.y.numpy() for batches in parts for b in batches])
    groups: dict[str, list[int]] = {}
    for j, column in enumerate(federated.columns):
        groups.setdefault(column.group or column.name, []).append(j)
    found = {}
    for name, at in groups.items():
        there = ~np.isnan(x[:, at]).any(1)
        mine, target = x[:, at][there], y[there].astype(np.float64)
        if federated.kind == "classes":
            if names_classes(mine, target):
                found[name] = ", or names it one to one"
        elif len(at) == 1 and len(mine) >= _ENOUGH:
            a, b = mine[:, 0] - mine.mean(), target - target.mean()
            size = np.sqrt((a @ a) * (b @ b))
            if size and abs(a @ b) >= (1 - _NEAR**2) * size:
                found[name] = " in some unit (correlation 1)"
    return [
        f"column {name!r} equals the target{what}: leave it out if it is not known beforehand (data.drop={name})"
        for name, what in found.items()
    ]


def names_classes(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether rows of one class have one value (rows, columns), and other classes other ones. Rows were standardised
    in single precision, so that equal values differ a little."""
    if not len(x) or not (spread := np.ptp(x, 0)).any():
        return False
    classes, rows = np.unique(y, return_inverse=True)
    if len(classes) < 2 or len(x) - len(classes) < _ENOUGH:
        return False
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(classes)))
    low, high = (f.reduceat(x[order], starts) for f in (np.minimum, np.maximum))
    if ((high - low) > _NEAR * spread).any():
        return False
    return len(np.unique(np.round((low - low.min(0)) / np.where(spread, spread, 1), 3), axis=0)) == len(
        classes
    )


# ---- reading ----


def read(
    federated: FederatedData,
    client: str,
    client_data: ClientData,
    number: int,
    features: str,
    test: bool = True,
) -> Read:
    """One client's rows, in one pass."""
    moments: Moments | None = None
    found, ys = [], []
    parts = (client_data.train, client_data.val, *([client_data.test] if test else []))
    for part, batch in enumerate(parts):
        for rows, y in chunks(batch.take()):
            found.append(row_hashes(rows, y, number, part))
            ys.append(y)
            if features in ("table", "images"):
                one = Moments.of(rows) if features == "table" else total(rows)
                moments = one if moments is None else moments + one
    y = np.concatenate(ys)
    if federated.kind != "classes":
        y = y.astype(np.float64) * federated.scale + federated.offset
    if moments is not None and (scaler := federated.rulers.get(client)):
        moments = moments.rescaled(scaler.middle, scaler.spread)
    return Read(y, held(federated, client_data), moments, found)


def chunks(batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of rows (n, values of an example), images with channels last, and of their targets."""
    x, y = batch.x.numpy(), batch.y.numpy()
    x = x.transpose(0, 2, 3, 1) if x.ndim == 4 else x  # the order in which images of bytes are in memory
    step = max(1, _STEP * len(x) // max(x.nbytes, 1)) if len(x) else 1
    for start in range(0, len(x), step):
        some = x[start : start + step]
        yield np.ascontiguousarray(some).reshape(len(some), -1), y[start : start + step]


def total(rows: np.ndarray) -> Moments:
    """Means only, since deviations of pixels are not shown. Bytes are summed as whole numbers, which is fastest."""
    exact, white = (np.uint32, 255) if rows.dtype == np.uint8 else (np.float64, 1)
    return Moments(len(rows), rows.sum(0, dtype=exact) / (white * len(rows)), np.zeros(rows.shape[1]))


# ---- labels ----


def label_counts(federated: FederatedData, ys: list[np.ndarray]) -> tuple[list[str], np.ndarray]:
    """Names of classes or bins, and the number of rows of each client (clients, labels)."""
    if federated.kind == "classes":
        names = list(federated.classes) or [str(i) for i in range(federated.outputs)]
        return names, np.stack([np.bincount(y, minlength=len(names)) for y in ys])
    if federated.kind == "survival":
        return ["censored", "event"], np.stack([np.bincount(y > 0, minlength=2) for y in ys])
    edges = decile_edges(np.concatenate(ys))
    ends = [f"{edge:.4g}" for edge in edges]
    names = [f"{a} to {b}".strip() for a, b in zip(["", *ends], [*ends, ""], strict=True)]
    if ends:
        names[0], names[-1] = f"below {ends[0]}", f"{ends[-1]} and above"
    return names, np.stack([binned(y, edges) for y in ys])


def summary(federated: FederatedData, y: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation and quantiles of numbers, or of the times of survival; nothing for classes."""
    if federated.kind == "classes":
        return {}
    y = np.abs(y) if federated.kind == "survival" else y
    quantiles = dict(zip(_QUANTILES, np.quantile(y, list(_QUANTILES.values())).tolist(), strict=True))
    return {"mean": float(y.mean()), "std": float(y.std())} | quantiles


# ---- features ----


def held(federated: FederatedData, client_data: ClientData) -> np.ndarray:
    """Which columns of a table a client holds; empty for other data."""
    if len(federated.shape) != 1:
        return np.zeros(0, bool)
    columns = client_data.columns or federated.columns
    return np.array([c.here for c in columns]) if columns else np.ones(federated.shape[0], bool)


def curve(y: np.ndarray, times: np.ndarray) -> list[float | None]:
    """The share of the rows without event at these times, as far as a row was watched; nothing without times."""
    if not len(times) or not len(y):
        return []
    found, last = survival_curve(y), np.abs(y).max()
    shares = found.survival[np.searchsorted(found.times, times, "right") - 1]
    return [float(s) if t <= last else None for s, t in zip(shares, times, strict=True)]


def described(
    federated: FederatedData, reads: list[Read], features: str, times: np.ndarray
) -> list[dict[str, Any]]:
    """Targets and features of each client, described."""
    columns = [int(r.held.sum()) if features == "table" else 0 for r in reads]
    apart = set_apart(federated, reads) if features == "table" else [[] for _ in reads]
    return [
        {"target": summary(federated, r.y), "columns": many, "apart": most, "channels": channels(federated, r),
         "survival": curve(r.y, times)}
        for r, many, most in zip(reads, columns, apart, strict=True)
    ]  # fmt: skip


def channels(federated: FederatedData, of: Read) -> list[float]:
    """The mean of each channel of a client's images."""
    if of.moments is None or len(federated.shape) != 3:
        return []
    return [float(v) for v in of.moments.mean.reshape(-1, federated.shape[0]).mean(0)]


def set_apart(federated: FederatedData, reads: list[Read]) -> list[list[Deviation]]:
    """The columns in which each client differs most from all clients, among those it holds."""
    mine = [r.moments.only(r.held) for r in reads if r.moments]
    everyone = reduce(add, mine)
    names = [c.name for c in federated.columns] or [f"x{j + 1}" for j in range(federated.shape[0])]
    return [deviations(m, everyone, names) for m in mine]


def deviations(mine: Moments, everyone: Moments, names: list[str]) -> list[Deviation]:
    """The columns with the largest standardised differences of means; constant ones say nothing."""
    spread = everyone.std
    constant = spread <= 1e-9 * np.maximum(abs(everyone.mean), 1e-9)
    usable = (np.asarray(mine.n) > 0) & ~constant
    away = np.where(usable, mine.mean - everyone.mean, 0) / np.where(constant, 1, spread)
    first = [j for j in np.argsort(-abs(away), kind="stable").tolist() if usable[j]]
    return [
        Deviation(names[j], float(mine.mean[j]), float(mine.std[j]), float(away[j])) for j in first[:MOST]
    ]


# ---- equal rows ----


def duplicates(federated: FederatedData, reads: list[Read]) -> DuplicateRows:
    """Equal rows of clients with the same columns, if all were standardised in the same way."""
    every = RowHashes.join([p for r in reads for p in r.hashes])
    columns = column_sets([r.held for r in reads])
    names = [*federated.clients_data, *federated.unseen]
    return find(every, names, columns, comparable=scaled_alike(federated))


def column_sets(held: Sequence[np.ndarray]) -> list[int]:
    """The number of each client's set of columns."""
    sets: dict[bytes, int] = {}
    return [sets.setdefault(h.tobytes(), len(sets)) for h in held]


def scaled_alike(federated: FederatedData) -> bool:
    scalers = list(federated.rulers.values())
    return all(
        np.array_equal(s.middle, scalers[0].middle) and np.array_equal(s.spread, scalers[0].spread)
        for s in scalers
    )
