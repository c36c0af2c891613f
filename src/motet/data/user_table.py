"""The user's own table: which columns are features, and which ones are target, client, part and weight.

Knows the roles of columns. Does not know files (table_files.py), what features are made of cells (table_features.py),
nor how rows are divided among clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.client.losses import Kind
from motet.data import targets
from motet.data.cell_values import numbers_of
from motet.data.federated import PARTS, DataError, Pool, refuse
from motet.data.left_out import smaller_files
from motet.data.row_weights import WeightReader
from motet.data.table_features import FeatureReader, TableFeature, unclear_decimals
from motet.data.table_files import SourceTable, read
from motet.data.table_settings import Auto, DateForm, Decimal, Missing, MissingBy, Names, TableSettings
from motet.data.text_codes import TextSettings, text_pool
from motet.data.tidy_cells import TextColumn, is_text
from motet.text import nearest, one_spelling, truths

if TYPE_CHECKING:
    import pandas as pd

_PART_WORDS = {
    "train": "train training fit learn",
    "val": "val valid validation dev development tune",
    "test": "test testing holdout hold-out evaluation",
}
_PARTS = {word: PARTS.index(part) for part, words in _PART_WORDS.items() for word in words.split()}

_PART_NAMES = ("part", "split", "fold", "set", "subset", "partition")


def load(
    path: str,
    *,
    target: str = "",  # the column to predict; survival: the column of times
    client: str = "",  # the column that names each row's client; "" in a folder: the file's name
    kind: str = "auto",  # classes | numbers | survival; auto: text, truth values and few whole numbers are classes
    missing: Missing = "refuse",  # empty cells: refuse | mean | median | most_frequent | indicator
    drop: Names = (),  # columns to leave out
    missing_by: MissingBy = "auto",  # whose training rows fill cells; auto: mean federation, median client
    missing_values: Names = (),  # more words for an empty cell, say -999 or unknown
    drop_rows: bool = False,  # whether rows without a target or a client are left out
    keep: Names = (),  # columns that look like ids and are none
    part: str = "",  # the column that says which rows are for train, val and test
    dates: DateForm = "days",  # days since 2000-01-01 | parts: year, month, weekday, hour | leave_out
    day_first: bool | Auto = "auto",  # whether 01/02/2020 is in February; auto: found by column
    decimal: Decimal = "auto",  # comma | point; auto: found by file and column
    event: str = "",  # survival only: the column that says whether the event was seen (1, true, yes) or not
    weight: str = "",  # the column that says what each row counts: survey weights, say
    categories: Names = (),  # columns of codes: 01 and 1 are two names, and none is a number
    text: str = "",  # the column of texts to learn from, word by word; other columns are then left out
    text_length: int = 64,  # words of a text that are read
    vocabulary: int = 4000,  # different words at most
    tokenizer: str = "words",  # words: most frequent ones of training rows | hash | a pretrained network's folder
    without: Names = (),  # clients to leave out, as if the data had never had them
) -> Pool:
    """The rows of a CSV or Parquet file, or of a folder with one such file per client."""
    how = TableSettings(
        target, client, part, kind, missing, missing_by, tuple(missing_values), tuple(drop), tuple(keep), drop_rows,
        dates, day_first, decimal, event=event, weight=weight, categories=tuple(categories),
    )  # fmt: skip
    with smaller_files(Path(path), client, without) as (files, gone):
        table = read(files, how.sign, how.missing_values, texts=(*how.texts, text))
        texts = TextSettings(text, text_length, vocabulary, tokenizer) if text else None
        pool = as_pool(table, how, files.is_dir(), texts)
    pool.left_out = gone
    return pool


def as_pool(
    table: SourceTable, how: TableSettings, folder: bool = False, texts: TextSettings | None = None
) -> Pool:
    """The rows of a table as a pool; in a folder, each file is a client unless a column names the clients. With
    `texts`, a row is the words of one column."""
    if how.kind not in targets.KINDS:
        raise DataError(f"kind is {how.kind!r}; expected one of {', '.join(targets.KINDS)}")
    reader = Reader(table, how)
    reader.expect()
    reader.leave_rows_out()
    weight = reader.weight(folder)
    y, kind, classes = reader.survival() if how.survival else reader.target()
    owner, names = reader.owner(folder)
    part = reader.part()
    if texts:
        empty = Pool(np.zeros((0, 0)), y, kind, classes, (), owner, names, part, own_table=True)
        return pool_of_texts(reader, texts, empty)
    features = FeatureReader(reader.table, how, owner, names, reader.problems, reader.notes)
    found = features.features(reader.used)
    if not found and not reader.problems:
        reader.problems.append("no column is left to learn from")
    refuse(table.problems + reader.problems)
    pool = Pool(
        np.concatenate([f.values for f in found.values()], axis=1), y, kind, classes,
        tuple(c for f in found.values() for c in f.columns), owner, names, part, notes=table.notes + reader.notes,
        missing=how.missing, missing_by=how.filled_by, held=held_by(found, len(names)), learned_columns=True,
        reading={"missing_values": list(how.missing_values), "decimal": how.decimal, "day_first": features.day_first}
        | ({"likely_sign": table.sign} if table.sign else {})
        | ({"missing": how.missing} if how.fills else {}),
        weight=weight, own_table=True,
    )  # fmt: skip
    pool.fill, pool.client_column = bool(pool.gaps().any()), how.client
    return pool


def pool_of_texts(reader: Reader, texts: TextSettings, pool: Pool) -> Pool:
    """The pool with the words of a column as its examples."""
    table = reader.table
    texts.check(list(table.frame.columns))
    for what in ("target", "client"):
        if texts.column == getattr(reader.how, what):
            raise DataError(
                f"data.text is {texts.column!r}, the column that says the {what}; expected a column of texts.\n"
                "hint: data.text names another column"
            )
    if others := [c for c in reader.used if c != texts.column]:
        reader.notes.append(
            f"the texts of {texts.column!r} are learned from, and not {', '.join(map(repr, others))}"
        )
    refuse(table.problems + reader.problems)
    if reader.how.weight:
        raise DataError("rows of text cannot have weights yet.\nhint: leave data.weight out")
    pool.notes = table.notes + reader.notes
    return text_pool(table.frame[texts.column].fillna("").map(str).tolist(), texts, pool)


def held_by(features: dict[str, TableFeature], clients: int) -> np.ndarray | None:
    """(clients, columns) who holds which column; None: everybody all."""
    if all(f.held is None for f in features.values()):
        return None
    yes = np.ones(clients, bool)
    return np.column_stack([yes if f.held is None else f.held for f in features.values() for _ in f.columns])


@dataclass
class Reader:
    """Finds the columns that have a role, and collects all problems."""

    table: SourceTable
    how: TableSettings
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def used(self) -> list[str]:
        """The columns that are learned from."""
        how = self.how
        roles = {how.target, how.event, how.client, how.part, how.weight, *how.drop}
        return [c for c in self.table.frame.columns if c not in roles]

    def expect(self) -> None:
        """Report columns that are named and not there."""
        there, how = list(self.table.frame.columns), self.how
        self.problems += self._unclear_event(there)
        wanted = [("target", how.target), ("event", how.event), ("client", how.client), ("part", how.part)]
        wanted += (
            [("category", c) for c in how.categories]
            + [("weight", how.weight)]
            + [("drop", d) for d in how.drop]
            + [("keep", k) for k in how.keep]
        )
        for role, name in wanted:
            if role == "target" and not name:
                hint = f"{how.say('target', 'COLUMN')}; {nearest('', there)}"
                self.problems.append(f"no target is named.\nhint: {hint}")
            elif name and name not in there:
                self.problems.append(f"there is no {role} column {name!r}.\nhint: {nearest(name, there)}")
        named = [name for name in (how.target, how.event, how.client, how.part, how.weight) if name]
        for name in sorted({n for n in named if named.count(n) > 1}):
            self.problems.append(f"column {name!r} cannot be two of target, event, client, part and weight")

    def _unclear_event(self, there: list[str]) -> list[str]:
        kind, event = self.how.kind, self.how.event
        if kind == "survival" and not event:
            return [
                "kind is survival, and no column says whether the event was seen.\n"
                f"hint: {self.how.say('event', 'COLUMN')} with 0 and 1; {nearest('event', there)}"
            ]
        if event and kind not in ("auto", "survival"):
            hint = self.how.say("kind", "survival")
            return [f"an event column {event!r} is named, and kind is {kind!r}.\nhint: {hint}"]
        return []

    def leave_rows_out(self) -> None:
        """Without rows that have no target or no client, if that was said."""
        import pandas as pd

        if not self.how.drop_rows:
            return
        frame = self.table.frame
        how = self.how
        roles = {
            "a target": how.target,
            "an event": how.event,
            "a client": how.client,
            "a weight": how.weight,
        }
        for role, name in roles.items():
            if name in frame.columns and (gaps := pd.isna(self.table.frame[name]).to_numpy()).any():
                places = self.table.where(np.flatnonzero(gaps))
                self.notes.append(f"{gaps.sum()} rows without {role} are left out: {places}")
                self.table = self.table.only(~gaps)

    def weight(self, folder: bool) -> np.ndarray | None:
        """(rows,) what each row counts, above 0: rows that count nothing are left out of the table."""
        reader = WeightReader(self.table, self.how)
        found = reader.weights()
        self.problems += reader.problems
        if found is None:
            return None
        owner, names = self.owner(folder, quiet=True)
        reader.note_weights(found, np.zeros(0) if owner is None else owner, names)
        self.notes += reader.notes
        self.table = self.table.only(found > 0)
        return found[found > 0]

    def _report_rows(self, role: str, name: str, gaps: np.ndarray) -> None:
        self.problems.append(
            f"the {role} {name!r} has {len(gaps)} missing values: {self.table.where(gaps)}.\n"
            f"hint: leave these rows out: {self.how.say('drop_rows', 'true')}"
        )

    def target(self) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
        name = self.how.target
        nothing: tuple[np.ndarray, Kind, tuple[str, ...]] = (np.empty(0), "numbers", ())
        if name not in self.table.frame.columns:
            return nothing
        before, column = len(self.problems), self.table.frame[name]
        if name in self.table.unclear and self.how.kind != "classes":
            self.problems.append(unclear_decimals(self.table, name, self.how))
        if len(gaps := np.flatnonzero(column.isna())):
            self._report_rows("target", name, gaps)
        values = self._target_values(name, column)
        if len(self.problems) > before:
            return nothing
        y, kind, classes = targets.encode(values, self.how.kind)
        if len(np.unique(y)) == 1 and not self.how.at_site:
            self.problems.append(f"the target {name!r} is the same in every row: nothing to learn")
        if self.how.kind == "auto" and values.dtype.kind in "iuf":
            what, other = (f"{len(classes)} classes", "numbers") if classes else ("numbers", "classes")
            self.notes.append(
                f"the target {name!r} is read as {what}; if wrong: {self.how.say('kind', other)}"
            )
        return y, kind, classes

    def survival(self) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
        """Times and events as one number a row (targets.survival_target)."""
        frame, before = self.table.frame, len(self.problems)
        if not {self.how.target, self.how.event} <= set(frame.columns):
            return np.empty(0), "survival", ()
        times, seen = self._times(self.how.target), self._events(self.how.event)
        if len(self.problems) > before:
            return np.empty(0), "survival", ()
        if many := int((times == 0).sum()):
            self.notes.append(
                f"{many} times of {self.how.target!r} are 0; they become half of the smallest other time"
            )
        self.notes.append(
            f"{int(seen.sum()):,} of {len(seen):,} rows had their event; the others are censored"
        )
        return targets.survival_target(times, seen), "survival", ()

    def _times(self, name: str) -> np.ndarray:
        if name in self.table.unclear:
            self.problems.append(unclear_decimals(self.table, name, self.how))
        times = self._target_values(name, self.table.frame[name])
        if times.dtype.kind not in "iuf":
            self.problems.append(f"the target {name!r} must hold times, and holds text.\nhint: write numbers")
            return np.empty(0)
        if len(gaps := np.flatnonzero(np.isnan(times))):
            self._report_rows("time", name, gaps)
        if len(rows := np.flatnonzero(times < 0)):
            self.problems.append(
                f"the time {name!r} is negative in {len(rows)} rows: {self.table.where(rows)}.\n"
                "hint: count times from the start of watching: the event's date minus the first"
            )
        return times

    def _events(self, name: str) -> np.ndarray:
        column = self.table.frame[name]
        seen, bad = targets.seen_events(np.asarray(column.astype(object)))
        gaps = column.isna().to_numpy()
        if gaps.any():
            self._report_rows("event", name, np.flatnonzero(gaps))
        if (bad := bad & ~gaps).any():
            places = self.table.where(np.flatnonzero(bad))
            self.problems.append(
                f"the event {name!r} is neither yes nor no in {int(bad.sum())} rows: {places}.\n"
                "hint: write 1 where the event was seen and 0 where it was not; true and false, yes and no do too"
            )
        return seen

    def _target_values(self, name: str, column: pd.Series) -> np.ndarray:
        import pandas as pd

        if pd.api.types.is_bool_dtype(column):
            return np.asarray(column.fillna(False), bool)
        if pd.api.types.is_numeric_dtype(column):
            values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
            if len(wild := np.flatnonzero(np.isinf(values))):
                self.problems.append(f"the target {name!r} is infinite: {self.table.where(wild)}")
            return values
        text = TextColumn(column)
        numbers = numbers_of(text.texts, ".")  # other signs are numbers since the file was read
        if self.how.kind == "classes" and all(map(targets.is_whole, text.texts)):
            return np.asarray(np.append(numbers.values, np.nan)[text.codes])
        if self.how.kind != "numbers" and truths(text.texts) is not None:
            if one_spelling(text.texts):
                self.notes.append(
                    f"the target {name!r} writes yes and no in several ways: read as two classes"
                )
            return np.asarray(np.array([*text.texts, ""], object)[text.codes])
        if self.how.kind != "classes" and text.mostly_numbers(numbers):
            wrong = np.isnan(numbers.values)
            if len(rows := np.flatnonzero(np.append(wrong, False)[text.codes])):
                self.problems.append(
                    f"the target {name!r} is mostly numbers, and {len(rows)} of its values are not: "
                    f"{self.table.where(rows)}.\nhint: {self.how.say('kind', 'classes')}; or, if they stand for "
                    f"nothing: {self.how.say('missing_values', ['WORD', 'WORD'])} {self.how.say('drop_rows', 'true')}"
                )
            return np.asarray(np.append(numbers.values, np.nan)[text.codes])
        if self.how.kind == "numbers":
            self.problems.append(
                f"the target {name!r} holds text, and kind is 'numbers'.\nhint: {self.how.say('kind', 'classes')}"
            )
        return np.asarray(np.array([*text.texts, ""], object)[text.codes])

    def owner(self, folder: bool, quiet: bool = False) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """Each row's client as an index, and the clients' names; `quiet`: what is wrong is said elsewhere."""
        name = self.how.client
        if folder and not name:
            return self.table.file, tuple(f.stem for f in self.table.files)
        if name not in self.table.frame.columns:
            return None, ()
        import pandas as pd

        column = self.table.frame[name]
        if len(gaps := np.flatnonzero(column.isna())):
            if not quiet:
                self._report_rows("client column", name, gaps)
            return None, ()
        codes, names = pd.factorize(column.map(targets.name_of).astype(str), sort=True)
        return codes, tuple(map(str, names))

    def part(self) -> np.ndarray | None:
        """(rows,) each row's part as an index into PARTS, -1 where the cell is empty; None without such a column."""
        name = self.how.part
        if name not in self.table.frame.columns:
            self._suggest_part()
            return None
        text = TextColumn(self.table.frame[name])
        found: np.ndarray = np.array([*(_PARTS.get(t.casefold(), -2) for t in text.texts), -1])[text.codes]
        if len(rows := np.flatnonzero(found == -2)):
            self.problems.append(
                f"the part {name!r} holds {len(rows)} values that are none of train, val and test: "
                f"{self.table.where(rows)}.\nhint: leave such cells empty: their rows' parts are drawn"
            )
        return found

    def _suggest_part(self) -> None:
        """Note a column that says train and test, and that nobody named."""
        for name in self.used:
            column = self.table.frame[name]
            if name.strip().casefold() not in _PART_NAMES or not is_text(column):
                continue
            words = {t.casefold() for t in TextColumn(column).texts}
            if words and words <= _PARTS.keys():
                hint = self.how.say("part", name)
                self.notes.append(f"column {name!r} says which rows are for training: if so, {hint}")
