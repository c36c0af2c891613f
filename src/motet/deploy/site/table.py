"""A site's own table: its description for others, its sums, and the client data that it becomes.

Rows leave this file only as client data for the site's own service. What is said to others depends on the rows,
the owner's settings and the policy, and on no letter.
Knows one site's rows. Does not know other sites, nor what is trained.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from motet.client import Batch, ClientData, Column
from motet.core import Tree
from motet.data.build_clients import Partition, RowBlock, gather, views
from motet.data.federated import DataError, FederatedData, Pool, Scaler, refuse
from motet.data.fill_missing import fill_values, with_fallback
from motet.data.learned_columns import OTHER, is_indicator
from motet.data.partition import TRAIN, DataSettings, cut
from motet.data.splits import Assignment
from motet.data.table_features import FeatureReader, TableFeature, indicator
from motet.data.table_files import SourceTable, read
from motet.data.table_settings import TableSettings, filled_by
from motet.data.user_table import Reader
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.site.categories import category_counts, is_text, nearly_unique, with_learned, with_others
from motet.deploy.site.disclosure import class_counts, column_sums
from motet.deploy.site.layout_checks import FAR, check_scaling
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.table_reading import TableReading
from motet.text import respelled

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SiteTable:
    """A file, or a folder of files, that all belong to one site."""

    site: str
    path: Path
    target: str
    drop: tuple[str, ...] = ()
    missing: str = "refuse"  # what fills empty cells, or refuse
    kind: str = "auto"  # classes, numbers or auto
    split: Split = Split()  # as the owner chose it
    least_category: int = Policy.least_category  # rows of a category; rarer ones are one category
    more: TableReading = TableReading()  # how else the table is read

    def settings(self, kind: str) -> TableSettings:
        """How the table is read, with the target as classes or numbers."""
        missing: Any = self.missing
        return TableSettings(
            target=self.target, kind=kind, missing=missing, drop=self.drop, at_site=True, **asdict(self.more)
        )

    @cached_property
    def table(self) -> SourceTable:
        """The rows that have a target, or all where none may lack one."""
        how = self.settings(self.kind)
        reader = Reader(read(Path(self.path), how.sign, how.missing_values, texts=how.texts), how)
        refuse(reader.table.problems)
        reader.leave_rows_out()
        return reader.table

    def reader(self, kind: str) -> Reader:
        if kind == "survival":
            raise DataError(
                "times of survival cannot be learned between organisations yet.\n"
                "hint: --kind numbers for times without censoring, or --kind classes for an event"
            )
        reader = Reader(self.table, self.settings(kind))
        reader.expect()
        refuse(reader.problems)
        return reader

    @cached_property
    def used(self) -> list[str]:
        """Names of the columns that are learned from."""
        return Reader(self.table, self.settings(self.kind)).used

    @cached_property
    def read_features(self) -> FeatureReader:
        reader = self.reader(self.kind)
        return FeatureReader(self.table, reader.how, problems=reader.problems, notes=reader.notes)

    def notes(self) -> list[str]:
        """What the owner should know of how the table was read; it stays here."""
        assert self.features  # which makes the notes
        return self.table.notes + self.read_features.notes

    @cached_property
    def features(self) -> dict[str, TableFeature]:
        """What each column of the file becomes; columns of names or numbers of persons are refused."""
        reader = self.read_features
        found = reader.features(self.used)
        if not found and not reader.problems:
            reader.problems.append("no column is left to learn from")
        refuse(reader.problems)
        texts = {c: f for c, f in found.items() if is_text(f)}
        self.refuse_unique(
            [c for c, f in texts.items() if nearly_unique(category_counts(f), self.least_category)]
        )
        return found | {c: with_others(c, f, self.least_category) for c, f in texts.items()}

    @cached_property
    def described(self) -> dict[str, TableFeature]:
        """The features as others know them: with what training rows have, and no more."""
        learned, least = self.learned(self.kind), self.least_category
        some = {
            name: with_learned(f, learned, least) if is_text(f) or is_indicator(f.columns[0]) else f
            for name, f in self.features.items()
        }
        return {name: f for name, f in some.items() if f.columns}

    def refuse_unique(self, names: list[str]) -> None:
        """By name and without a value: categories and classes are what leaves first."""
        if names:
            raise RefusedByPolicy(
                f"most values of {', '.join(map(repr, names))} are different or rare, and names of categories and "
                f"classes leave.\nhint: names and dates are no categories; leave them out: "
                f"--drop {','.join(names)}; or group their values",
                "categories",
            )

    def labels(self, kind: str) -> tuple[np.ndarray, str, tuple[str, ...]]:
        """Targets, their kind, and the names of classes."""
        reader = self.reader(kind)
        y, found, classes = reader.target()
        refuse(reader.problems)
        if found == "classes":
            self.refuse_rare_classes(np.bincount(y))
        return y, found, classes

    def refuse_rare_classes(self, counts: np.ndarray) -> None:
        """A class is what is learned, so that rare ones are not put together without the owner's word."""
        if not self.numeric and nearly_unique(counts, self.least_category):
            self.refuse_unique([self.target])
        if rare := int(((counts > 0) & (counts < self.least_category)).sum()):
            what = "1 class" if rare == 1 else f"{rare} classes"
            raise RefusedByPolicy(
                f"{what} of the target {self.target!r} in fewer than {self.least_category} rows: names of classes "
                "leave, and such a name may tell of a person.\n"
                "hint: write one common class in place of rare ones, or leave their rows out; where nobody can be "
                "known by a class, least_category = 1 in the policy",
                "categories",
            )

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """How the target may be read: as the owner says, or as it looks. Numbers that look like numbers are never read
        as classes: a list of classes would be a question which numbers there are."""
        _, found, _ = self.labels(self.kind)
        return (
            ("classes", "numbers")
            if found == "classes" and self.numeric and self.kind == "auto"
            else (found,)
        )

    @property
    def numeric(self) -> bool:
        """Whether the target's cells are numbers."""
        return bool(self.table.frame[self.target].dtype.kind in "iuf")

    # ---- what others may know ----

    def describe(self, policy: Policy | None = None, split: Split | None = None) -> Tree:
        """Names and kinds of columns, categories and classes, how rows are divided; numbers of rows only where they
        may leave."""
        policy = policy or Policy()
        y, kind, classes = self.labels(self.kind)
        description = {
            "columns": [_description(name, f) for name, f in self.described.items()],
            "target": {"name": self.target, "kind": kind, "classes": list(classes)},
            "auto": self.kind == "auto" and self.numeric,  # whether the kind was guessed from numbers
            "holes": any(bool(np.isnan(f.values).any()) for f in self.features.values()),
            "split": split or self.split,
        }
        rows = np.bincount(y, minlength=len(classes)).tolist() if kind == "classes" else []
        counts = {"rows": len(y), "classes": class_counts(rows, policy.least_rows)}
        return description | {"counts": counts if policy.counts is True else {}, "masked": policy.hidden}

    def measure(self, kind: str, policy: Policy | None = None) -> ColumnSums:
        """Sums of training rows, by column of this site's own; the target's come last if it is numbers."""
        own = self.own_layout(kind)
        block = self.block(own)
        z = block.x[block.learned]
        groups = [group for _, _, group in own.columns]
        if own.kind == "numbers":
            z, groups = np.column_stack([z, block.y[block.learned]]), [*groups, ""]
        return column_sums(z, groups, policy or Policy())

    def own_layout(self, kind: str) -> Layout:
        """The columns and classes of this site alone."""
        columns = [(c.name, c.kind, c.group) for f in self.described.values() for c in f.columns]
        _, found, classes = self.labels(kind)
        return Layout(tuple(columns), found, classes)  # type: ignore[arg-type]

    def check_layout(self, layout: Layout, said: ColumnSums | None = None) -> None:
        """Refuse a layout in which this site's columns are not what they are, or are scaled out of all bounds; `said`
        is what this site says of its own columns, and nothing else of them is looked at."""
        own = {c.name: c for f in self.features.values() for c in f.columns}
        for name, kind, group in layout.columns:
            here = own.get(name)
            if here is not None:
                fits = group == here.group and (kind == here.kind or (not group and here.kind == "flag"))
            else:
                text = group in self.features and is_text(self.features[group])
                fits = name not in self.features and (
                    group not in self.features or (text and kind == "flag" and name.startswith(f"{group}="))
                )
            if not fits:
                raise RefusedByPolicy(
                    f"a layout has a column {name!r:.80} that is another one here", "layout"
                )
        if layout.kind == "classes" and set(self.named_as(layout)) - set(layout.classes):
            raise RefusedByPolicy(f"a layout lacks classes of the target {self.target!r}", "layout")
        check_scaling(
            layout, None if said is None else said.aligned(self.own_layout(layout.kind).columns, layout)
        )

    def row_hashes(self) -> np.ndarray:
        """(rows,) hashes of what is used of each row, in the table's order."""
        import pandas as pd

        frame = self.table.frame[[*self.used, self.target]]
        return np.asarray(pd.util.hash_pandas_object(frame, index=False).to_numpy())

    def cell_hashes(self) -> dict[str, np.ndarray]:
        """By used column: (rows,) hashes of cells, uint64. A number has one hash, however it is written."""
        return {c: _cell_hashes(self.table.frame[c]) for c in (*self.used, self.target)}

    # ---- what the site's own service gets ----

    def build_clients(self, layout: Layout, said: ColumnSums | None = None) -> FederatedData:
        """This site's rows as client data, partitioned, filled and scaled as all sites agreed; `said` is what the site
        says of its columns."""
        block, held = self.block(layout), self.held(layout)
        unsaid, bound = np.zeros(len(layout.columns), bool), False
        if said is not None:
            there = said.aligned(self.own_layout(layout.kind).columns, layout).many == 0
            unsaid = layout.numbers & held & there[: len(unsaid)]
            bound = layout.kind == "numbers" and bool(there[-1])
        x, y, scaler = self.scaled(layout, block.x, block.y, block.learned, unsaid)
        y = y.clip(-FAR, FAR) if bound else y
        (parts,) = views(replace(block, x=x, y=y))
        columns = tuple(replace(c, here=bool(h)) for c, h in zip(layout.table, held, strict=True))
        found = layout.federation(str(self.path), {self.site: ClientData(*parts, columns)})
        holes = bool(np.isnan(block.x).any())
        return replace(
            found,
            rulers={self.site: scaler} if layout.scale != "none" else {},
            fills={self.site: self.fill(layout, block.x[block.learned])} if holes else {},
            reading=self.reading(),
        )

    def reading(self) -> dict[str, Any]:
        """How the table was read, for new rows of this site."""
        found: dict[str, Any] = {
            "missing_values": list(self.more.missing_values),
            "decimal": self.more.decimal,
        }
        found |= {"missing": self.missing} if self.missing != "refuse" else {}
        found |= {"likely_sign": self.table.sign} if self.table.sign else {}
        return found | {"day_first": self.read_features.day_first}

    def whole(self, layout: Layout) -> Batch:
        """All rows as one batch, laid out as the sites' are: what a server has of its own."""
        pool = self.pool(layout)
        x, y, _ = self.scaled(layout, pool.x, pool.y, np.ones(len(pool.x), bool))
        return Batch.of(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    def scaled(
        self,
        layout: Layout,
        x: np.ndarray,
        y: np.ndarray,
        learned: np.ndarray,
        unsaid: np.ndarray | bool = False,
    ) -> tuple[np.ndarray, np.ndarray, Scaler]:
        """Rows with empty cells filled and numbers standardised; the scaler is made of the `learned` rows. A layout
        cannot be checked in `unsaid` columns: what it makes of them is bounded instead, without a word."""
        fills = self.fill(layout, x[learned])
        if filled_by(self.missing, self.more.missing_by) == "federation":
            fills = np.where(unsaid, means_of(x[learned]), fills)
        x = np.where(np.isnan(x), fills, x)
        scaler = self.scaler(layout, x[learned])
        target = Scaler(*map(np.asarray, layout.target))
        y = target.apply(y) if layout.kind == "numbers" else y
        z = scaler.apply(x)
        if layout.scale == "federation":
            z = np.where(unsaid, z.clip(-FAR, FAR), z)
        return np.where(self.held(layout), z, np.float32(0)), y, scaler

    def fill(self, layout: Layout, rows: np.ndarray) -> np.ndarray:
        """(columns,) what fills empty cells: the federation's means, or what this site's training rows say."""
        means = layout.means.numpy() if isinstance(layout.means, torch.Tensor) else None
        if means is not None and filled_by(self.missing, self.more.missing_by) == "federation":
            return means
        own = fill_values(rows, layout.table, self.missing)
        return with_fallback(own, np.zeros(len(own)) if means is None else means)

    def scaler(self, layout: Layout, rows: np.ndarray) -> Scaler:
        if layout.scale == "none":
            return Scaler(np.zeros(len(layout.columns)), np.ones(len(layout.columns)))
        return layout.scaler if layout.scale == "federation" else Scaler.of(rows, layout.table)

    def block(self, layout: Layout) -> RowBlock:
        """The rows in the layout's columns, sorted by part; empty cells are NaN."""
        pool, parts = self.pool(layout), self.parts(layout.kind)
        row, who = np.arange(len(parts)), np.zeros(len(parts), np.int64)
        none, yes = np.empty(0, np.int64), np.ones(1, bool)
        return gather(pool, Partition(row, who, parts, (self.site,), yes, ~yes, none, none))

    def parts(self, kind: str) -> np.ndarray:
        """(rows,) the part of each row: a matter of this site's own targets and split, whatever a layout says."""
        y, found, classes = self.labels(kind)
        n = len(y)
        reader = self.reader(kind)
        given = reader.part()
        refuse(reader.problems)
        pool = Pool(np.zeros((n, 1)), y, found, classes)  # type: ignore[arg-type]
        own = Assignment(np.arange(n), np.zeros(n, np.int64), (self.site,))
        return cut(
            pool,
            own,
            np.full(n, -1) if given is None else given,
            DataSettings(val=self.split.val, test=self.split.test),
            self.split.seed,
        )

    def learned(self, kind: str) -> np.ndarray:
        """(rows,) which rows are training rows."""
        return np.asarray(self.parts(kind) == TRAIN)

    def pool(self, layout: Layout) -> Pool:
        y, _, classes = self.labels(layout.kind)
        if layout.kind == "classes":
            classes = self.named_as(layout)
            place = {c: i for i, c in enumerate(layout.classes)}
            if strange := len(set(classes) - set(place)):
                raise DataError(f"the target {self.target!r} has {strange} classes that nobody agreed on")
            y = np.array([place[c] for c in classes], np.int64)[y]
        named = {name for name, _, _ in layout.columns}
        x = np.column_stack([self.cells(c, named) for c in layout.table])
        return Pool(x, y, layout.kind, layout.classes, layout.table)

    def named_as(self, layout: Layout) -> tuple[str, ...]:
        """This site's classes, in the layout's words where both are yes and no."""
        classes = self.labels(layout.kind)[2]
        spelled = respelled(classes, layout.classes)
        return tuple(spelled.get(c, c) for c in classes)

    def cells(self, column: Column, named: set[str]) -> np.ndarray:
        """(rows,) one column. A category that is not among this site's is 0, or unknown where the cell is empty;
        `other` takes in what is not among the layout's names."""
        if is_indicator(column) and column.name not in self.features:
            return np.zeros(len(self.table.frame))  # the column that it speaks of has no empty cell here
        feature = self.features.get(column.group or column.name)
        if feature is None:
            return np.zeros(len(self.table.frame))
        other = column.name == f"{column.group}={OTHER}"
        here = [c.name == column.name or (other and c.name not in named) for c in feature.columns]
        gaps = np.isnan(feature.values[:, 0])
        return np.where(gaps, np.nan, feature.values[:, here].sum(1))

    def held(self, layout: Layout) -> np.ndarray:
        """(columns,) which of the layout's columns this site has."""
        about = {indicator(name) for name in self.features}
        return np.array(
            [(group or name) in self.features or name in about for name, _, group in layout.columns], bool
        )


def means_of(rows: np.ndarray) -> np.ndarray:
    """By column, of cells that are not empty."""
    there = ~np.isnan(rows)
    return np.asarray(np.where(there, rows, 0).sum(0) / np.maximum(there.sum(0), 1))


def _cell_hashes(column: pd.Series) -> np.ndarray:
    """Of 1, 1.0, true and " 1" the same; of texts without spaces around them; of all empty cells the same."""
    import pandas as pd

    texts = column.astype(object).map(str, na_action="ignore").fillna("")
    texts = texts.str.strip().replace({"True": "1", "true": "1", "False": "0", "false": "0"})
    numbers = pd.to_numeric(texts, errors="coerce").astype(float)
    plain = texts.where(numbers.isna(), numbers.map(lambda v: f"{v + 0.0:.12g}"))
    return np.asarray(pd.util.hash_array(plain.to_numpy(dtype=object)))


def _description(name: str, feature: TableFeature) -> Tree:
    groups = [c.name.removeprefix(f"{name}=") for c in feature.columns if c.group]
    kind = "text" if groups else feature.columns[0].kind
    return {"name": name, "kind": kind, "values": groups}
