"""The features of a table: what each column becomes, and whose rows hold it.

Numbers and truth values stay, text becomes categories, dates become numbers, ids are left out.
Knows columns and rows of one table. Does not know targets, nor how features are standardised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.client import Column
from motet.data.cell_values import (
    ORIGIN,
    calendar_parts,
    dates_of,
    days_of,
    has_short_year,
    numbers_of,
)
from motet.data.table_files import SourceTable
from motet.data.table_settings import TableSettings
from motet.data.targets import name_of
from motet.data.tidy_cells import TextColumn, is_text
from motet.text import truths, truths_among

if TYPE_CHECKING:
    import pandas as pd

_MANY = 100  # a text column with more different values than this is not taken for categories
_UNIQUE = 0.9  # share of different values among the cells of an id
_FEW = 20  # of fewer cells nobody can say whether they are ids
_ID_WORDS = {"id", "ids", "uuid", "guid", "mrn", "identifier", "key", "index", "nr", "pid"}
_ID_NAMES = {
    "patient",
    "subject",
    "person",
    "case",
    "record",
    "row",
    "name",
    "patientid",
    "subjectid",
    "caseid",
}


@dataclass
class TableFeature:
    """The features that one column of the table becomes."""

    values: np.ndarray  # (rows, columns) float64; NaN is missing
    columns: list[Column]
    held: np.ndarray | None = None  # (clients,) who has a cell of it; None: everybody


@dataclass
class RowDates:
    """The dates of a column."""

    when: pd.Series  # (rows,) NaT where a cell is no date
    unclear: list[Path]  # files in which day and month could be either way round
    orders: set[bool | None]  # whether days come first, of all files; None: no matter


@dataclass
class FeatureReader:
    """Reads columns one by one and collects all problems."""

    table: SourceTable
    how: TableSettings
    owner: np.ndarray | None = None  # (rows,) the index of each row's client
    names: tuple[str, ...] = ()  # of the clients
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    day_first: dict[str, bool] = field(default_factory=dict)  # what was found, by column of dates

    def features(self, names: list[str]) -> dict[str, TableFeature]:
        """By name of the feature; a date may become several."""
        found: dict[str, TableFeature] = {}
        for name in names:
            gaps = self.table.frame[name].isna().to_numpy()
            if gaps.all():
                self.notes.append(f"column {name!r} is empty: left out")
                continue
            held = self.held(name, gaps)
            some = self.feature(name, gaps if held is None else gaps & held[self.owner])
            for feature in some.values():
                feature.held = held
            found |= some
        said = [indicator(name) for name in names if indicator(name) in found]
        return {n: f for n, f in found.items() if n not in said} | {n: found[n] for n in said}

    def held(self, name: str, gaps: np.ndarray) -> np.ndarray | None:
        """(clients,) who has a cell of the column; None if all have."""
        if self.owner is None or not gaps.any():
            return None
        held = np.bincount(self.owner[~gaps], minlength=len(self.names)) > 0
        absent = np.flatnonzero(~held & (np.bincount(self.owner, minlength=len(self.names)) > 0))
        if not len(absent):
            return None
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        who = ", ".join(self.names[i] for i in absent[:5])
        self.notes.append(f"{who}{more} {'do' if len(absent) > 1 else 'does'} not hold the column {name!r}")
        return held

    def feature(self, name: str, gaps: np.ndarray) -> dict[str, TableFeature]:
        """What one column becomes, by name; `gaps` are its missing cells, where the column is held."""
        import pandas as pd

        column = self.table.frame[name]
        if name in self.table.unclear:
            self.problems.append(unclear_decimals(self.table, name, self.how))
            return {}
        if name in self.how.categories:
            found = self._one_hot(name, TextColumn(column.map(name_of, na_action="ignore")))
        elif pd.api.types.is_bool_dtype(column):
            found = self._numbers(name, column, "flag")
        elif pd.api.types.is_numeric_dtype(column):
            found = {} if self._is_id(name, column) else self._numbers(name, column, "number")
        elif pd.api.types.is_datetime64_any_dtype(column):
            found = self._dates(name, dates_in(column, "auto"))
        elif is_text(column):
            found = self._text(name, column)
        else:
            self.problems.append(
                f"column {name!r} holds {column.dtype}, which is neither number, truth value, date nor text.\n"
                f"hint: turn it into numbers, or leave it out: {self.how.say('drop', [name])}"
            )
            found = {}
        if found:
            self._report_gaps(name, gaps)
        if found and gaps.any() and self.how.missing == "indicator":
            if indicator(name) in self.table.frame.columns and indicator(name) not in self.how.drop:
                self.problems.append(
                    f"the table has a column {indicator(name)!r}, which is what missing cells of {name!r} become.\n"
                    f"hint: give it another name, or leave it out: {self.how.say('drop', [indicator(name)])}"
                )
            found[indicator(name)] = TableFeature(
                gaps[:, None].astype(np.float64), [Column(indicator(name), "flag")]
            )
        return found

    # ---- numbers ----

    def _numbers(self, name: str, column: pd.Series, kind: str) -> dict[str, TableFeature]:
        values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if len(wild := np.flatnonzero(np.isinf(values))):
            self.problems.append(
                f"column {name!r} holds infinite values: {self.table.where(wild)}.\n"
                f"hint: if they stand for nothing, {self.how.say('missing_values', ['inf', '-inf'])}; "
                f"or leave it out: {self.how.say('drop', [name])}"
            )
        elif np.nanmin(values) == np.nanmax(values):
            self.notes.append(f"column {name!r} is the same in every row: it says nothing")
        return {name: TableFeature(values[:, None], [Column(name, kind)])}

    def _report_gaps(self, name: str, gaps: np.ndarray) -> None:
        if not gaps.any():
            return
        if self.how.fills:
            words = {"median": "median", "most_frequent": "most frequent value"}
            whose = (
                "each client's own " if self.how.filled_by == "client" and not self.how.at_site else "the "
            )
            what = f"{whose}{words.get(self.how.missing, 'mean')} of training rows"
            more = f"; {indicator(name)!r} says where" if self.how.missing == "indicator" else ""
            self.notes.append(f"{gaps.sum()} missing values of {name!r} are filled with {what}{more}")
            return
        places = self.table.where(np.flatnonzero(gaps))
        self.problems.append(
            f"column {name!r} has {gaps.sum()} missing values: {places}.\n"
            f"hint: {self.how.say('missing', 'mean')} fills them (also median, most_frequent, indicator); "
            f"or leave the column out: {self.how.say('drop', [name])}"
        )

    # ---- text ----

    def _text(self, name: str, column: pd.Series) -> dict[str, TableFeature]:
        text = TextColumn(column)
        if (every := truths(text.texts)) is not None:
            values = np.append(every, np.nan)[text.codes]
            if len(text.texts) == 1:
                self.notes.append(f"column {name!r} is the same in every row: it says nothing")
            return {name: TableFeature(values[:, None], [Column(name, "flag")])}
        dates = self._dates_by_file(text)
        if self._has_short_years(name, text, dates):
            return {}
        if dates and 2 * dates.when.notna().sum() >= text.many.sum():
            return self._text_dates(name, text, dates)
        numbers = numbers_of(text.texts, ".")  # other signs are numbers since the file was read
        said = truths_among(text.texts)
        coded = all(t in said for t, v in zip(text.texts, numbers.values, strict=True) if not np.isnan(v))
        if text.mostly_numbers(numbers) and not (said and coded):
            return self._text_numbers(name, text, numbers.values)
        if self._is_id(name, column):
            return {}
        if len(said) > len(set(said.values())):
            text.texts = [("no", "yes")[int(said[t])] if t in said else t for t in text.texts]
            self.notes.append(
                f"text column {name!r} writes yes and no in several ways beside other values: read as two of its "
                f"categories; {self.how.say('categories', [name])} keeps them apart"
            )
        return self._one_hot(name, text)

    def _text_numbers(self, name: str, text: TextColumn, numbers: np.ndarray) -> dict[str, TableFeature]:
        """Numbers in a column that its file calls text."""
        import pandas as pd

        if np.isnan(numbers).any():
            self._report_wrong(name, "numbers", np.append(np.isnan(numbers), False)[text.codes])
            return {}
        column = pd.Series(np.append(numbers, np.nan)[text.codes])
        return {} if self._is_id(name, column) else self._numbers(name, column, "number")

    def _report_wrong(self, name: str, what: str, wrong: np.ndarray) -> None:
        rows = np.flatnonzero(wrong)
        known = f"if these are words for a missing value, name them: {self.how.say('missing_values', ['WORD', 'WORD'])}"
        if not self.how.at_site:
            known += f"; if all are codes, and no {what}: {self.how.say('categories', [name])}"
        self.problems.append(
            f"column {name!r} is mostly {what}, and {len(rows)} of its values are not: {self.table.where(rows)}.\n"
            f"hint: {known}; or leave the column out: {self.how.say('drop', [name])}"
        )

    def _one_hot(self, name: str, text: TextColumn) -> dict[str, TableFeature]:
        known = sorted(set(text.texts))
        if len(known) > _MANY and name not in (*self.how.keep, *self.how.categories):
            self.problems.append(
                f"column {name!r} is text with {len(known)} different values; expected at most {_MANY}.\n"
                f"hint: leave it out: {self.how.say('drop', [name])}; or make {len(known)} columns of it: "
                f"{self.how.say('keep', [name])}"
            )
            return {}
        place = {t: i for i, t in enumerate(known)}
        codes = np.array([*(place[t] for t in text.texts), -1])[text.codes]
        values = (codes[:, None] == np.arange(len(known))).astype(np.float64)
        values[codes < 0] = np.nan
        self.notes.append(
            f"text column {name!r} becomes columns of 0 and 1, one for each category found in training rows"
        )
        return {name: TableFeature(values, [Column(f"{name}={k}", "flag", name) for k in known])}

    # ---- ids ----

    def _is_id(self, name: str, column: pd.Series) -> bool:
        """Whether a column numbers or names its rows; then it is left out with a note."""
        if name in self.how.keep:
            return False
        cells = column.dropna()
        share = self._different(column) / len(cells)
        if column.dtype.kind in "iuf":
            whole = bool((cells == cells.round()).all())
            found = named_like_an_id(name) and whole and share >= _UNIQUE and len(cells) >= _FEW
        else:
            found = (share >= _UNIQUE and len(cells) >= _FEW) or (
                named_like_an_id(name) and cells.nunique() > _MANY
            )
        if found:
            self.notes.append(
                f"column {name!r} looks like an id, because nearly every row has a value of its own: left out; "
                f"{self.how.say('keep', [name])} keeps it"
            )
        return bool(found)

    def _different(self, column: pd.Series) -> int:
        """How many values are different, counted for each client where they have rows enough: every hospital may number
        its patients from 1."""
        some = column.notna().to_numpy()
        if self.owner is None or some.sum() < _FEW * max(len(self.names), 1):
            return int(column.nunique())
        return int(column[some].groupby(self.owner[some]).nunique().sum())

    # ---- dates ----

    def _dates_by_file(self, text: TextColumn) -> RowDates | None:
        """Whether days or months come first is a matter of each file; None: nothing is a date."""
        every = dates_of(text.texts, self.how.day_first)
        one_way = every.day_first is None or self.how.day_first != "auto" or len(self.table.files) == 1
        if one_way and not every.values.notna().any():
            return None
        if one_way:
            return RowDates(
                _by_row(text, every.values), every.ambiguous * self.table.files, {every.day_first}
            )
        found, file = RowDates(_by_row(text, every.values), [], set()), self.table.file
        for i, path in enumerate(self.table.files):
            rows = np.flatnonzero((file == i) & (text.codes >= 0))
            used, place = np.unique(text.codes[rows], return_inverse=True)
            dates = dates_of([text.texts[j] for j in used], self.how.day_first)
            found.when.iloc[rows] = dates.values.iloc[place].to_numpy()
            found.unclear += [path] * dates.ambiguous
            found.orders.add(dates.day_first)
        return found

    def _has_short_years(self, name: str, text: TextColumn, dates: RowDates | None) -> bool:
        """Whether years of dates have two digits; then it is said, because nobody knows the century."""
        short = np.append([has_short_year(t) for t in text.texts], False)[text.codes]
        known = 0 if dates is None else int(dates.when.notna().sum())
        if name in self.how.keep or not short.any() or 2 * (int(short.sum()) + known) < text.many.sum():
            return False
        self.problems.append(
            f"column {name!r} holds dates whose years have two digits, so that their century is not known, in "
            f"{int(short.sum())} rows: {self.table.where(np.flatnonzero(short))}.\nhint: write years with four digits; "
            f"or leave the column out: {self.how.say('drop', [name])}"
        )
        return True

    def _text_dates(self, name: str, text: TextColumn, dates: RowDates) -> dict[str, TableFeature]:
        if dates.unclear and self.how.dates != "leave_out":
            self.problems.append(
                f"column {name!r}{_in_files(dates.unclear, self.table)} holds dates whose day and month can be "
                f"either way round.\nhint: {self.how.say('day_first', 'true')} for 31/12/2020, "
                f"{self.how.say('day_first', 'false')} for 12/31/2020; or {self.how.say('dates', 'leave_out')}"
            )
            return {}
        wrong = dates.when.isna().to_numpy() & (text.codes >= 0)
        if wrong.any():
            self._report_wrong(name, "dates", wrong)
            return {}
        if len(orders := dates.orders - {None}) == 1:
            self.day_first[name] = bool(orders.pop())
        return self._dates(name, dates.when)

    def _dates(self, name: str, when: pd.Series) -> dict[str, TableFeature]:
        if self.how.dates == "leave_out":
            self.notes.append(f"column {name!r} holds dates: left out")
            return {}
        parts = date_features(name, when, self.how.dates)
        self.notes.append(f"the dates of {name!r} become {', '.join(map(repr, parts))}")
        return {n: TableFeature(v[:, None], [Column(n)]) for n, v in parts.items()}


def date_features(name: str, when: pd.Series, form: str) -> dict[str, np.ndarray]:
    """Numbers by name of the feature."""
    if form == "days":
        return {f"{name}: days since {ORIGIN}": days_of(when)}
    return {f"{name}: {part}": values for part, values in calendar_parts(when).items()}


def unclear_decimals(table: SourceTable, name: str, how: TableSettings) -> str:
    """What to say of a column whose numbers can be read in two ways."""
    return (
        f"column {name!r} of {', '.join(table.unclear[name][:5])} holds numbers with a comma before three digits: "
        f"thousands, or decimals?\nhint: {how.say('decimal', 'point')} for thousands, "
        f"{how.say('decimal', 'comma')} for decimals"
    )


def _in_files(files: list[Path], table: SourceTable) -> str:
    """The files of which something is said, if it is not all of them."""
    if len(files) == len(table.files):
        return ""
    more = f" and {len(files) - 5} more files" if len(files) > 5 else ""
    return f" of {', '.join(f.name for f in files[:5])}{more}"


def dates_in(column: pd.Series, day_first: bool | str) -> pd.Series:
    """(rows,) the dates that a column holds; NaT where a cell is no date."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return column.dt.tz_localize(None) if column.dt.tz else column
    text = TextColumn(column)
    return _by_row(text, dates_of(text.texts, day_first).values)


def _by_row(text: TextColumn, dates: pd.Series) -> pd.Series:
    """A date for each row, from one for each text."""
    import pandas as pd

    when = pd.concat([dates, pd.Series([pd.NaT], dtype=dates.dtype)], ignore_index=True)
    return when.iloc[text.codes].reset_index(drop=True)


def indicator(name: str) -> str:
    """The feature that says where cells of a column are missing."""
    return f"{name} is missing"


def named_like_an_id(name: str) -> bool:
    """
    >>> [named_like_an_id(n) for n in ("PatientID", "study_id", "patient", "column 1", "video", "age")]
    [True, True, True, True, False, False]
    """
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return bool(
        _ID_WORDS & set(words)
        or "".join(words) in _ID_NAMES
        or re.fullmatch(r"column \d+|Unnamed: \d+", name)
    )
