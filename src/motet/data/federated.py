"""Federated data: all rows before they are partitioned (Pool), and every client's share after (FederatedData).

Knows arrays, names and parts. Does not know where rows come from or how they are partitioned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import islice
from typing import Any

import numpy as np
import torch

from motet.client import Batch, ClientData, Column, LazyRows
from motet.client.losses import Kind
from motet.client.population import Population, is_weighted
from motet.client.task import Pixels
from motet.errors import MotetError

__all__ = ["DataError", "FederatedData", "Pixels", "Pool", "Scaler", "refuse"]

PARTS = ("train", "val", "test", "proxy", "server_test")  # a row's part is one of these words, or its number
LOCAL = 3  # the first three stay with clients; proxy and server test set are the server's
Rows = tuple[np.ndarray, np.ndarray]

LARGEST_RATIO = 1e12  # of two weights of rows: scores of single precision can tell no more apart


class DataError(MotetError, ValueError):
    """Something is wrong with the data or with what was asked of them."""


def refuse(problems: list[str]) -> None:
    """Raise all problems together, or nothing."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        listed = "\n".join(f"{i}. {p}" for i, p in enumerate(problems, 1))
        raise DataError(f"{len(problems)} things are wrong with the data:\n{listed}")


@dataclass
class Pool:
    """All rows, before they are partitioned among clients."""

    x: np.ndarray  # (N, ...) float32; float64 that becomes float32 after scaling; uint8: pixels or symbols
    y: np.ndarray  # (N,) int64 index of a class, or a float; survival: targets.survival_target
    kind: Kind
    classes: tuple[str, ...] = ()  # their names; () for numbers and survival
    columns: tuple[Column, ...] = ()
    owner: np.ndarray | None = None  # (N,) each row's client: a name, or an index into `names`
    names: tuple[str, ...] = ()  # of the clients, if `owner` holds indices
    part: np.ndarray | None = (
        None  # (N,) words or numbers of PARTS; -1: not decided yet; the server's rows have an owner too
    )
    proxy: Rows | None = None  # what the server holds from the start
    server_test: Rows | None = None  # a global test set
    scaling: str = "federation"  # what scale = "auto" means here
    fill: bool = False  # NaN in x are filled with training means
    pixels: Pixels | None = None  # x holds bytes of images (N, channels, height, width), to be normalised so
    augment: bool = False  # images are shifted and mirrored at random in training
    exact: bool = False  # numbers stay float64, and targets in their own unit
    digest: str = ""  # of x and y, where it is known already
    notes: list[str] = field(default_factory=list)
    all_train: bool = False  # rows marked train are all for training: none of them becomes a validation row
    missing: str = "mean"  # what fills NaN: mean | median | most_frequent | indicator (the mean)
    missing_by: str = "federation"  # whose training rows: those of the federation, or each client's own
    held: np.ndarray | None = (
        None  # (names, columns) who holds which column; others have NaN there; None: all
    )
    sample_deviation: bool = False  # flags are standardised too, and by the deviation of a sample (ddof 1)
    learned_columns: bool = False  # whether categories that no training row has are left out of the columns
    reading: dict[str, Any] = field(default_factory=dict)  # how a table was read, to read new rows alike
    left_out: tuple[str, ...] = ()  # clients whose rows were left out when the others were read
    weight: np.ndarray | None = None  # (N,) what each row counts, above 0; None: all alike
    codes: int = 0  # x holds codes of words, so many different ones; 0: it does not
    own_table: bool = False  # a person's table: a class that one of its clients alone has is a fault
    client_column: str = ""  # of a person's table: what names the clients
    words: tuple[str, ...] = ()  # of which training rows will say which have a code (text_codes.py)

    def gaps(self) -> np.ndarray:
        """(N, columns) which cells are missing, where the column is held."""
        gaps: np.ndarray = np.isnan(self.x)
        return gaps if self.held is None or self.owner is None else gaps & self.held[self.owner]

    def problems(self) -> list[str]:
        """What makes these rows unusable, each in a sentence."""
        n, wrong = len(self.x), []
        if n == 0:
            return ["there are no rows"]
        for name in ("y", "owner", "part", "weight"):
            values = getattr(self, name)
            if values is not None and values.shape != (n,):
                wrong.append(f"x has {n} rows, and {name} has shape {values.shape}; expected ({n},)")
        if self.x.dtype == np.uint8:
            if self.pixels and (self.x.ndim != 4 or self.x.shape[1] != len(self.pixels.mean)):
                wrong.append(f"x has shape {self.x.shape}, and {len(self.pixels.mean)} channels are named")
        elif self.x.dtype.kind != "f":
            wrong.append(f"x holds {self.x.dtype}; expected float32, or uint8 for images and text")
        elif not self.fill and (self.gaps().any() or np.isinf(self.x).any()):
            wrong.append("x holds missing (NaN) or infinite values.\nhint: fill them or drop their rows")
        if self.columns and (self.x.ndim != 2 or self.x.shape[1] != len(self.columns)):
            wrong.append(f"x has shape {self.x.shape}, and {len(self.columns)} columns are named")
        if self.held is not None and self.held.shape != (expected := (len(self.names), len(self.columns))):
            wrong.append(f"held has shape {self.held.shape}; expected {expected}, names and columns")
        if len(set(self.names)) < len(self.names):
            wrong.append("two clients have the same name")
        known = self.owner if self.names and self.owner is not None else np.zeros(0)
        if len(known) and not 0 <= known.min() <= known.max() < len(self.names):
            wrong.append(f"owner holds indices outside of the {len(self.names)} names")
        return wrong + self._problems_of_weight() + self._problems_of_y()

    def _problems_of_weight(self) -> list[str]:
        if self.weight is None:
            return []
        if self.x.dtype == np.uint8 or self.kind == "survival":
            return ["weights of rows are for tables of numbers whose targets are classes or numbers"]
        sound = self.weight.dtype.kind in "fiu" and np.isfinite(self.weight).all() and (self.weight > 0).all()
        if not sound:
            return ["weight must hold finite numbers above 0.\nhint: leave other rows out"]
        ratio = self.weight.max() / self.weight.min() if len(self.weight) else 1.0
        said = f"the largest weight is {ratio:.1g} times the smallest; at most {LARGEST_RATIO:.0g} can be counted"
        return (
            [f"{said}.\nhint: give rows that are to count nothing the weight 0"]
            if ratio > LARGEST_RATIO
            else []
        )

    def _problems_of_y(self) -> list[str]:
        if self.kind not in ("classes", "numbers", "survival"):
            return [f"kind is {self.kind!r}; expected 'classes', 'numbers' or 'survival'"]
        if self.kind != "classes":
            if self.y.dtype.kind != "f" or not np.isfinite(self.y).all():
                return [f"y must hold finite floats, because kind is {self.kind!r}"]
            if self.kind == "survival":
                return self._problems_of_times()
            return ["the target is the same number in every row"] if np.ptp(self.y) == 0 else []
        if self.y.dtype.kind not in "iu":
            return [f"y holds {self.y.dtype}; expected int64, the index of each row's class"]
        if self.y.min() < 0 or self.y.max() >= len(self.classes):
            low, high = self.y.min(), self.y.max()
            return [f"y runs from {low} to {high}, and {len(self.classes)} classes are named"]
        return ["all rows are of one class"] if np.ptp(self.y) == 0 else []

    def _problems_of_times(self) -> list[str]:
        if (self.y == 0).any():
            return ["times must not be 0, because their sign says whether the event was seen\n"
                    "hint: motet.data.targets.survival_target(time, event) makes them"]  # fmt: skip
        if not (self.y > 0).any():
            return ["no row has its event: all are censored, and there is nothing to learn"]
        return ["all rows have the same time"] if np.ptp(np.abs(self.y)) == 0 else []


@dataclass(frozen=True)
class Scaler:
    """What standardises numbers: (number - middle) / spread."""

    middle: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, columns: tuple[Column, ...] = (), ddof: int = 0) -> Scaler:
        """Mean and standard deviation of each column; flags are left alone, constants only centred. NaN are rows of
        clients that do not hold the column, and do not count."""
        ddof = min(ddof, len(rows) - 1)
        middle: np.ndarray = rows.mean(0, dtype=np.float64)
        spread: np.ndarray = rows.std(0, dtype=np.float64, ddof=ddof)
        if np.isnan(middle).any():
            rows = np.where(np.isnan(rows).all(0), 0.0, rows)  # 0: nobody holds the column
            middle = np.asarray(np.nanmean(rows, 0, dtype=np.float64))
            spread = np.asarray(np.nanstd(rows, 0, dtype=np.float64, ddof=ddof))
        spread = np.where(spread > 1e-9 * np.maximum(abs(middle), 1e-9), spread, 1.0)
        if not columns:
            return cls(middle, spread)
        number = np.array([c.kind == "number" for c in columns])
        return cls(np.where(number, middle, 0.0), np.where(number, spread, 1.0))

    def apply(self, values: np.ndarray) -> np.ndarray:
        return np.asarray((values - self.middle) / self.spread, np.float32)


@dataclass
class FederatedData:
    """Every client's data. All rows are in one array; clients hold views of it, or row numbers."""

    name: str
    clients_data: Mapping[str, ClientData]  # clients that take part, sorted by name; many are a population
    unseen: Mapping[str, ClientData]  # clients that are held out of training altogether
    kind: Kind
    outputs: int  # number of classes, or 1
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    shape: tuple[int, ...]  # of one example
    scale: float = 1.0  # numbers: target = prediction * scale + offset
    offset: float = 0.0
    proxy: Batch | LazyRows | None = None
    server_test: Batch | LazyRows | None = None
    rulers: Mapping[str, Scaler] = field(default_factory=dict)  # what standardised features, by client
    notes: list[str] = field(default_factory=list)  # what a person should know
    pixels: Pixels | None = None  # examples are bytes of images, which a task normalises
    symbols: bool = False  # examples are bytes of text
    codes: int = 0  # examples are codes of words, so many different ones (text_codes.py)
    exact: bool = False  # examples are float64, and networks for them must be
    missing: dict[str, int] = field(default_factory=dict)  # cells that were filled, by client
    digest: str = ""  # of all rows, where it is known
    natural: bool = True  # the clients are the same parties in every split: the data name them
    unseen_share: float = 0.0  # the share of the clients that was to be held out of training
    given_tests: bool = False  # the data say which rows are for the test, so that every split has the same
    fills: dict[str, np.ndarray] = field(default_factory=dict)  # what fills missing cells, by client
    reading: dict[str, Any] = field(default_factory=dict)  # how a table was read, to read new rows alike
    left_out: tuple[str, ...] = ()  # clients that are not here any more (data.without)

    def fingerprint(self) -> str:
        """sha256 of all values, names and parts: a run that is continued notices that its data changed."""
        digest = hashlib.sha256()
        columns = [(c.name, c.kind) for c in self.columns]
        digest.update(json.dumps([self.kind, self.classes, columns, self.scale, self.offset]).encode())
        for clients_data in (self.clients_data, self.unseen):
            if isinstance(clients_data, Population):
                digest.update(json.dumps([len(clients_data), clients_data.digest]).encode())
        for label, batch in self._batches():
            if isinstance(batch, LazyRows) and self.digest:
                values: list[torch.Tensor] = [batch.at]
                digest.update(self.digest.encode())
            else:
                values = [
                    batch.x,
                    batch.y,
                    *([batch.live] if self.weighted and isinstance(batch, Batch) else []),
                ]
            digest.update(json.dumps([label, *(list(v.shape) for v in values)]).encode())
            for v in values:
                digest.update(v.contiguous().numpy().reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def _repr_html_(self) -> str:
        """For a notebook: who holds how many rows, the first clients of many."""
        rows = [
            (c, *(len(getattr(d, part)) for part in PARTS[:LOCAL]))
            for c, d in islice(self.clients_data.items(), 30)
        ]
        cells = "".join(
            f"<tr><td>{escape(str(c))}</td>" + "".join(f"<td>{n:,}</td>" for n in sizes) + "</tr>"
            for c, *sizes in rows
        )
        heads = "".join(f"<th>{name}</th>" for name in ("client", *PARTS[:LOCAL]))
        many = f"{escape(self.name)}: {len(self.clients_data):,} clients, {len(self.unseen):,} unseen, {self.kind}"
        return f"<div><p>{many}</p><table><tr>{heads}</tr>{cells}</table></div>"

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return is_weighted(self.clients_data) or is_weighted(self.unseen)

    def _batches(self) -> Iterator[tuple[list[str], Batch | LazyRows]]:
        for role, clients_data in (("home", self.clients_data), ("unseen", self.unseen)):
            if isinstance(clients_data, Population) and clients_data.digest:
                continue
            for client, client_data in clients_data.items():
                for part in PARTS[:LOCAL]:
                    yield [role, client, part], getattr(client_data, part)
        for role, batch in (("proxy", self.proxy), ("server_test", self.server_test)):
            if batch is not None:
                yield [role], batch

    def pooled(self) -> FederatedData:
        """The same rows with one client, `everyone`, who holds all that the taking-part clients hold."""

        def join(part: str) -> Batch | LazyRows:
            batches = [getattr(client_data, part) for client_data in self.clients_data.values()]
            if isinstance(first := batches[0], LazyRows):
                return LazyRows(first.shared_x, first.shared_y, torch.cat([b.at for b in batches]))
            return Batch(*(torch.cat([getattr(b, name) for b in batches]) for name in ("x", "y", "live")))

        augment = any(h.augment for h in self.clients_data.values())
        everyone = ClientData(join("train"), join("val"), join("test"), self.columns, augment, self.weighted)
        notes = [*self.notes, "all clients are pooled into one"]
        return replace(self, clients_data={"everyone": everyone}, unseen={}, notes=notes)
