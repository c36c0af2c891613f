"""A site's own table: its description for others, its sums, and the client data that it becomes.

Rows leave this file only as client data for the site's own service. Knows one site's rows. Does not know
other sites, nor what is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from motet.client import Batch, ClientData, Column
from motet.core import Tree
from motet.data.build_clients import Partition, RowBlock, gather, views
from motet.data.federated import DataError, FederatedData, Pool, Scaler, refuse
from motet.data.partition import DataSettings, cut
from motet.data.splits import Assignment
from motet.data.table_files import SourceTable, read
from motet.data.user_table import Reader, TableFeature
from motet.deploy.agreement.layout import Layout


@dataclass(frozen=True)
class SiteTable:
    """A file, or a folder of files, that all belong to one site."""

    site: str
    path: Path
    target: str
    drop: tuple[str, ...] = ()
    missing: str = "refuse"  # refuse empty cells, or fill them with the column's mean
    kind: str = "auto"  # classes, numbers or auto

    @cached_property
    def table(self) -> SourceTable:
        return read(Path(self.path))

    def reader(self, kind: str) -> Reader:
        reader = Reader(self.table, kind, self.missing == "mean", one_of_many=True)
        reader.expect(self.target, "", self.drop)
        refuse(reader.problems)
        return reader

    @cached_property
    def features(self) -> dict[str, TableFeature]:
        """What each column of the file becomes."""
        reader = self.reader(self.kind)
        names = [c for c in self.table.frame.columns if c not in {self.target, *self.drop}]
        found = {c: reader.feature(c) for c in names}
        if not names:
            reader.problems.append("no column is left to learn from")
        refuse(reader.problems)
        return found

    # ---- what others may know ----

    def describe(self, counts: bool = True) -> Tree:
        """Names and kinds of columns, categories and classes; numbers of rows only where they may leave."""
        reader = self.reader(self.kind)
        y, kind, classes = reader.target(self.target)
        refuse(reader.problems)
        numeric = bool(self.table.frame[self.target].dtype.kind in "iuf")
        description = {
            "columns": [_description(name, f) for name, f in self.features.items()],
            "target": {"name": self.target, "kind": kind, "classes": list(classes)},
            "auto": self.kind == "auto" and numeric,  # whether the kind was guessed from numbers
            "holes": any(bool(np.isnan(f.values).any()) for f in self.features.values()),
        }
        rows = np.bincount(y, minlength=len(classes)).tolist() if kind == "classes" else []
        return description | {"counts": {"rows": len(y), "classes": rows} if counts else {}}

    def measure(self, layout: Layout, middle: Tree) -> Tree:
        """Sums of training rows by column: of cells, or of squared distances to a middle."""
        block = self.block(layout)
        z = np.where(self.held(layout), block.x[block.learned], np.nan)
        if layout.kind == "numbers":
            z = np.column_stack([z, block.y[block.learned]])
        some = ~np.isnan(z)
        rows = np.where(some.any(0), len(z), 0)
        if not isinstance(middle, torch.Tensor):
            sums = {"rows": rows, "many": some.sum(0), "total": np.where(some, z, 0.0).sum(0)}
            return {k: torch.from_numpy(v) for k, v in sums.items()}
        if middle.shape != (z.shape[1],):
            raise DataError(f"{z.shape[1]} columns are measured, and means came for {tuple(middle.shape)}")
        away = np.where(some, z - middle.numpy(), 0.0)
        return {"rows": torch.from_numpy(rows), "squares": torch.from_numpy((away**2).sum(0))}

    # ---- what the site's own service gets ----

    def build_clients(self, layout: Layout) -> FederatedData:
        """This site's rows as client data, partitioned, filled and scaled as all sites agreed."""
        block, held = self.block(layout), self.held(layout)
        x, y, scaler = self.scaled(layout, block.x, block.y, block.learned)
        (parts,) = views(replace(block, x=x, y=y))
        columns = tuple(replace(c, here=bool(h)) for c, h in zip(layout.table, held, strict=True))
        found = layout.federation(str(self.path), {self.site: ClientData(*parts, columns)})
        return replace(found, rulers={self.site: scaler} if layout.scale != "none" else {})

    def whole(self, layout: Layout) -> Batch:
        """All rows as one batch, laid out as the sites' are: what a server has of its own."""
        pool = self.pool(layout)
        x, y, _ = self.scaled(layout, pool.x, pool.y, np.ones(len(pool.x), bool))
        return Batch.of(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    def scaled(
        self, layout: Layout, x: np.ndarray, y: np.ndarray, learned: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Scaler]:
        """Rows with empty cells filled and numbers standardised; the scaler is made of the `learned` rows."""
        ours = isinstance(layout.means, torch.Tensor)
        x = np.where(np.isnan(x), layout.means.numpy() if ours else means_of(x[learned]), x)
        scaler = self.scaler(layout, x[learned])
        target = Scaler(*map(np.asarray, layout.target))
        y = target.apply(y) if layout.kind == "numbers" else y
        return np.where(self.held(layout), scaler.apply(x), np.float32(0)), y, scaler

    def scaler(self, layout: Layout, rows: np.ndarray) -> Scaler:
        if layout.scale == "none":
            return Scaler(np.zeros(len(layout.columns)), np.ones(len(layout.columns)))
        return layout.scaler if layout.scale == "federation" else Scaler.of(rows, layout.table)

    def block(self, layout: Layout) -> RowBlock:
        """The rows in the layout's columns, sorted by part; empty cells are NaN."""
        pool = self.pool(layout)
        n = len(pool.x)
        own = Assignment(np.arange(n), np.zeros(n, np.int64), (self.site,))
        common = DataSettings(val=layout.val, test=layout.test)
        parts = cut(pool, own, np.full(n, -1), common, layout.seed)
        none, yes = np.empty(0, np.int64), np.ones(1, bool)
        return gather(pool, Partition(own.row, own.who, parts, own.clients, yes, ~yes, none, none))

    def pool(self, layout: Layout) -> Pool:
        reader = self.reader(layout.kind)
        y, _, classes = reader.target(self.target)
        refuse(reader.problems)
        if layout.kind == "classes":
            if strange := sorted(set(classes) - set(layout.classes)):
                raise DataError(f"the target {self.target!r} has classes that nobody agreed on: {strange}")
            y = np.array([layout.classes.index(c) for c in classes], np.int64)[y]
        mine = {c.name: f.values[:, i] for f in self.features.values() for i, c in enumerate(f.columns)}
        empty = np.zeros(len(y))
        x = np.column_stack([mine.get(c.name, self.absent(c, empty)) for c in layout.table])
        return Pool(x, y, layout.kind, layout.classes, layout.table)

    def absent(self, column: Column, empty: np.ndarray) -> np.ndarray:
        """A category that is not among this site's is 0, or unknown where the cell is empty."""
        if column.group not in self.features:
            return empty
        return np.where(np.isnan(self.features[column.group].values[:, 0]), np.nan, 0.0)

    def held(self, layout: Layout) -> np.ndarray:
        """(columns,) which of the layout's columns this site has."""
        return np.array([(group or name) in self.features for name, _, group in layout.columns], bool)


def means_of(rows: np.ndarray) -> np.ndarray:
    """By column, of cells that are not empty."""
    there = ~np.isnan(rows)
    return np.asarray(np.where(there, rows, 0).sum(0) / np.maximum(there.sum(0), 1))


def _description(name: str, feature: TableFeature) -> Tree:
    groups = [c.name.removeprefix(f"{name}=") for c in feature.columns if c.group]
    kind = "text" if groups else feature.columns[0].kind
    return {"name": name, "kind": kind, "values": groups}
