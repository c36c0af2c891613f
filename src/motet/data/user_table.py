"""The user's own table: which columns are numbers, flags or text, and which ones are the target and the client.

Knows the meaning of columns. Does not know files (table_files.py), nor how rows are divided among clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.client import Column
from motet.client.task import Kind
from motet.data import targets
from motet.data.federated import DataError, Pool, refuse
from motet.data.left_out import smaller_files
from motet.data.table_files import SourceTable, read
from motet.text import nearest

if TYPE_CHECKING:
    import pandas as pd

OTHER = "other"  # the category of rare values, and of values that a model never saw
_MANY = 100  # a text column with more different values than this is a name or a date, not a category


def load(
    path: str,
    *,
    target: str = "",  # the column to predict
    client: str = "",  # the column that names each row's client; "" in a folder: the file's name
    kind: str = "auto",  # classes | numbers; auto: text, truth values and few whole numbers are classes
    missing: str = "refuse",  # refuse empty cells | mean: fill them with the column's training mean
    drop: tuple[str, ...] = (),  # columns to leave out
    without: tuple[str, ...] = (),  # clients to leave out, as if the data had never had them
) -> Pool:
    """The rows of a CSV or Parquet file, or of a folder with one such file per client."""
    with smaller_files(Path(path), client, without) as (files, gone):
        pool = as_pool(read(files), target, client, kind, missing, drop, files.is_dir())
    return replace(pool, left_out=gone)


def as_pool(
    table: SourceTable,
    target: str,
    client: str,
    kind: str,
    missing: str,
    drop: tuple[str, ...],
    folder: bool = False,
) -> Pool:
    """The rows of a table as a pool; in a folder, each file is a client unless a column names the clients."""
    if missing not in ("refuse", "mean"):
        raise DataError(f"missing is {missing!r}; expected 'refuse' or 'mean'")
    if kind not in ("auto", "classes", "numbers"):
        raise DataError(f"kind is {kind!r}; expected 'auto', 'classes' or 'numbers'")
    reader = Reader(table, kind, missing == "mean")
    reader.expect(target, client, drop)
    features = [c for c in table.frame.columns if c not in {target, client, *drop}]
    blocks = [reader.feature(c) for c in features]
    y, found, classes = reader.target(target)
    owner, names = reader.owner(client, folder)
    if not features:
        reader.problems.append("no column is left to learn from")
    refuse(reader.problems)
    x = np.concatenate([b.values for b in blocks], axis=1)
    columns = tuple(c for b in blocks for c in b.columns)
    fill = bool(np.isnan(x).any())
    return Pool(x, y, found, classes, columns, owner, names, fill=fill, notes=reader.notes)


@dataclass
class TableFeature:
    """The features that one column of the table becomes."""

    values: np.ndarray  # (rows, columns) float64; NaN is missing
    columns: list[Column]


@dataclass
class Reader:
    """Reads columns one by one and collects all problems."""

    table: SourceTable
    kind: str
    fill: bool
    one_of_many: bool = False  # a site of a federation may hold rows of one class: others hold the rest
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def expect(self, target: str, client: str, drop: tuple[str, ...]) -> None:
        """Report columns that are named and not there."""
        there = list(self.table.frame.columns)
        wanted = [("target", target), ("client", client), *(("drop", d) for d in drop)]
        for role, name in wanted:
            if role == "target" and not name:
                self.problems.append(f'no target is named.\nhint: say target = "..."; {nearest("", there)}')
            elif name and name not in there:
                self.problems.append(f"there is no {role} column {name!r}.\nhint: {nearest(name, there)}")
        if target and target == client:
            self.problems.append(f"column {target!r} cannot be both the target and the client")

    def feature(self, name: str) -> TableFeature:
        import pandas as pd

        column = self.table.frame[name]
        if pd.api.types.is_bool_dtype(column):
            return TableFeature(self._numbers(name, column), [Column(name, "flag")])
        if pd.api.types.is_numeric_dtype(column):
            return TableFeature(self._numbers(name, column), [Column(name)])
        if not _is_text(column):
            self.problems.append(
                f"column {name!r} holds {column.dtype}, which is neither number, truth value nor text.\n"
                f'hint: turn it into numbers, or leave it out: drop = ["{name}"]'
            )
            return TableFeature(np.empty((len(column), 0)), [])
        number = self._as_number(name, column)
        if number is None:
            return self._one_hot(name, column)
        return TableFeature(self._numbers(name, number), [Column(name)])

    def _numbers(self, name: str, column: pd.Series) -> np.ndarray:
        values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
        self._report_gaps(name, np.isnan(values))
        if len(wild := np.flatnonzero(np.isinf(values))):
            self.problems.append(
                f"column {name!r} holds infinite values: {self.table.where(wild)}.\n"
                "hint: replace them or drop their rows"
            )
        return values[:, None]

    def _report_gaps(self, name: str, gaps: np.ndarray) -> None:
        if gaps.all():
            self.problems.append(f'column {name!r} is empty.\nhint: leave it out: drop = ["{name}"]')
        elif gaps.any() and not self.fill:
            places = self.table.where(np.flatnonzero(gaps))
            self.problems.append(
                f"column {name!r} has {gaps.sum()} missing values: {places}.\n"
                'hint: fill them or drop their rows; missing = "mean" fills them with the training mean'
            )
        elif gaps.any():
            self.notes.append(f"{gaps.sum()} missing values of {name!r} are filled with the training mean")

    def _as_number(self, name: str, column: pd.Series) -> pd.Series | None:
        """A text column as numbers, if at least half of its values are numbers; reports those that are not."""
        import pandas as pd

        there = column.notna().to_numpy()
        numbers = pd.to_numeric(_texts(column), errors="coerce").astype(float)
        bad = np.flatnonzero(there & numbers.isna().to_numpy())
        if there.any() and len(bad) > there.sum() / 2:
            return None
        if len(bad):
            values = [str(v) for v in column.iloc[bad[:5]]]
            self.problems.append(
                f"column {name!r} is mostly numbers, and {len(bad)} of its values are not: "
                f"{self.table.samples(bad, values)}.\n"
                "hint: write numbers like 12.5, and leave cells of unknown values empty"
            )
            numbers.iloc[bad] = 0.0  # already reported: not reported as missing too
        return numbers

    def _one_hot(self, name: str, column: pd.Series) -> TableFeature:
        import pandas as pd

        gaps, texts = column.isna().to_numpy(), _texts(column)
        known = sorted(map(str, texts.dropna().unique()))
        self._report_gaps(name, gaps)
        if len(known) > _MANY:
            self.problems.append(
                f"column {name!r} is text with {len(known)} different values; expected at most {_MANY}.\n"
                f'hint: names and dates are no categories; leave it out: drop = ["{name}"]'
            )
            return TableFeature(np.empty((len(column), 0)), [])
        codes = np.asarray(pd.Categorical(texts, categories=known).codes)
        values = (codes[:, None] == np.arange(len(known))).astype(np.float64)
        values[gaps] = np.nan
        self.notes.append(
            f"text column {name!r} becomes {len(known)} columns of 0 and 1, "
            "one for each category found in the whole federation"
        )
        return TableFeature(values, [Column(f"{name}={k}", "flag", name) for k in known])

    def target(self, name: str) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
        nothing: tuple[np.ndarray, Kind, tuple[str, ...]] = (np.empty(0), "numbers", ())
        if name not in self.table.frame.columns:
            return nothing
        before, column = len(self.problems), self.table.frame[name]
        if len(gaps := np.flatnonzero(column.isna())):
            places = self.table.where(gaps)
            self.problems.append(f"the target {name!r} has missing values: {places}.\nhint: drop these rows")
        values = self._target_values(name, column)
        if len(self.problems) > before:
            return nothing
        y, kind, classes = targets.encode(values, self.kind)
        if len(np.unique(y)) == 1 and not self.one_of_many:
            self.problems.append(f"the target {name!r} is the same in every row: nothing to learn")
        if self.kind == "auto" and values.dtype.kind in "iuf":
            what, other = (f"{len(classes)} classes", "numbers") if classes else ("numbers", "classes")
            self.notes.append(f'the target {name!r} is read as {what}; if wrong, say kind = "{other}"')
        return y, kind, classes

    def _target_values(self, name: str, column: pd.Series) -> np.ndarray:
        import pandas as pd

        if pd.api.types.is_bool_dtype(column):
            return np.asarray(column.fillna(False), bool)
        if pd.api.types.is_numeric_dtype(column):
            values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
            if len(wild := np.flatnonzero(np.isinf(values))):
                self.problems.append(f"the target {name!r} is infinite: {self.table.where(wild)}")
            return values
        if self.kind != "classes":
            number = self._as_number(name, column)
            if number is not None:
                return np.asarray(number)
            if self.kind == "numbers":
                self.problems.append(f"the target {name!r} holds text, and kind is 'numbers'")
        return np.asarray(_texts(column), object)

    def owner(self, name: str, folder: bool) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Each row's client as an index, and the clients' names."""
        if folder and not name:
            return self.table.file, tuple(f.stem for f in self.table.files)
        if name not in self.table.frame.columns:
            return None, ()
        import pandas as pd

        column = self.table.frame[name]
        if len(gaps := np.flatnonzero(column.isna())):
            self.problems.append(f"the client column {name!r} has missing values: {self.table.where(gaps)}")
            return None, ()
        codes, names = pd.factorize(column.map(targets.name_of).astype(str), sort=True)
        return codes, tuple(map(str, names))


def _texts(column: pd.Series) -> pd.Series:
    """Every value as text, except missing ones."""
    return column.astype(object).map(str, na_action="ignore")


def _is_text(column: pd.Series) -> bool:
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return True
    if pd.api.types.is_string_dtype(column):
        return True
    simple = (str, int, float, bool, np.generic)
    return bool(column.dtype == object and all(isinstance(v, simple) for v in column.dropna()))
