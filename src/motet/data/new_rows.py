"""New rows for a trained model: its columns are found by name in a table, and read as they were for training.

Knows tables and names of columns. Does not know models. No message shows a cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from motet.data.cell_values import ORIGIN, dates_of, numbers_of
from motet.data.federated import refuse
from motet.data.learned_columns import OTHER
from motet.data.table_features import date_features, dates_in, indicator
from motet.data.table_files import SourceTable, bare_name
from motet.data.tidy_cells import TextColumn, is_text
from motet.text import nearest, respelled, truth


@dataclass
class NewRows:
    """New rows in a model's columns; collects all problems with them."""

    table: SourceTable
    columns: Sequence[str]
    absent: Sequence[str] = ()  # columns that the model's owner did not hold: the table need not have them
    fill: str = ""  # what fills empty cells, in words; "": they are refused
    day_first: Mapping[str, bool] = field(default_factory=dict)  # of columns of dates, as in training
    flags: Sequence[str] = ()  # columns of yes and no in training: no other number has a meaning there
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Names that differ in case, spaces and underscores are one, as they were in training."""
        known = {bare_name(s): s for c in self.columns for s in possible_sources(c)}
        there = list(self.table.frame.columns)
        bare = [bare_name(c) for c in there]
        other = {
            c: known[b]
            for c, b in zip(there, bare, strict=True)
            if b in known and known[b] not in there and bare.count(b) == 1
        }
        self.notes += [f"column {a!r} is read as {b!r}" for a, b in other.items()]
        self.table = replace(self.table, frame=self.table.frame.rename(columns=other))

    def values(self) -> np.ndarray:
        """(rows, columns); NaN for empty cells that are allowed."""
        found = [self.column(c) for c in self.columns]
        for name in dict.fromkeys(self.sources.values()):
            self.gaps(name, self.table.frame[name].isna().to_numpy())
        refuse(self.table.problems + self.problems)
        return np.column_stack(found)

    @cached_property
    def sources(self) -> dict[str, str]:
        """The column of the table that each column of the model is made of."""
        there = set(self.table.frame.columns)
        found = {c: s for c in self.columns for s in possible_sources(c) if s in there}
        return {c: s for c, s in found.items() if s in there}

    def column(self, name: str) -> np.ndarray:
        frame, source = self.table.frame, self.sources.get(name, "")
        if not source:
            if name not in self.absent:
                wanted = source_in_words(name)
                said = f"there is no column {wanted!r}.\nhint: {nearest(wanted, list(frame.columns))}"
                self.problems += [said] if said not in self.problems else []
            return np.full(len(frame), np.nan)
        if name == source:
            return self.number(name)
        if name == indicator(source):
            return np.asarray(frame[source].isna(), np.float64)
        if name.startswith(f"{source}="):
            return self.flag(source, name[len(source) + 1 :])
        return self.date(source, name)

    def number(self, name: str) -> np.ndarray:
        column = self.table.frame[name]
        if not is_text(column):
            values: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
            wrong = np.isinf(values)
        else:
            text = TextColumn(column)
            numbers = numbers_of(text.texts).values
            # beside other numbers, "no" is none of them
            if name in self.flags or np.isin(numbers[~np.isnan(numbers)], (0, 1)).all():
                said = [truth(t) for t in text.texts]
                numbers = np.array([np.nan if v is None else v for v in said])
            values = np.append(numbers, np.nan)[text.codes]
            wrong = ~np.isfinite(values) & (text.codes >= 0)
        if name in self.flags:
            self.expect_truths(name, values, wrong)
        elif len(bad := np.flatnonzero(wrong)):
            where = self.table.where(bad)
            self.problems.append(
                f"column {name!r} must hold numbers, and {len(bad)} values are none: {where}"
            )
        return values

    def expect_truths(self, name: str, values: np.ndarray, wrong: np.ndarray | bool = False) -> None:
        """A column that said yes or no in training does so in new rows; NaN is an empty cell unless it is `wrong`."""
        bad = np.flatnonzero(wrong | ~(np.isnan(values) | np.isin(values, (0, 1))))
        if len(bad):
            self.problems.append(
                f"column {name!r} said yes or no in training, and {len(bad)} values are neither: "
                f"{self.table.where(bad)}.\nhint: write 0 for no and 1 for yes, or the words"
            )

    def date(self, source: str, name: str) -> np.ndarray:
        column = self.table.frame[source]
        order = self.day_first.get(source, "auto")
        if is_text(column) and dates_of(TextColumn(column).texts, order).ambiguous:
            said = (
                f"column {source!r} holds dates whose day and month can be either way round, and so did no training "
                "row's date.\nhint: write them as 2020-12-31"
            )
            self.problems += [said] if said not in self.problems else []
        when = dates_in(column, order)
        wrong = np.flatnonzero(when.isna().to_numpy() & column.notna().to_numpy())
        if len(wrong):
            said = f"column {source!r} must hold dates, and {len(wrong)} values are none: {self.table.where(wrong)}"
            self.problems += [said] if said not in self.problems else []
        found = date_features(source, when, "days") | date_features(source, when, "parts")
        return found.get(name, np.zeros(len(when)))  # no date has a time: the hour is 0

    def flag(self, name: str, value: str) -> np.ndarray:
        column = self.table.frame[name]
        empty = column.isna().to_numpy()
        texts = column.astype(object).map(str, na_action="ignore")
        texts = texts.replace(respelled(texts[~empty].unique(), sorted(self.known(name)))).to_numpy()
        if f"{name}={value}" == next(c for c in self.columns if c.startswith(f"{name}=")):
            self.strangers(name, texts, empty)
        here = texts == value
        if value == OTHER:
            here |= ~np.isin(texts.astype(str), sorted(self.known(name)))
        return np.where(empty, np.nan, here.astype(float))

    def gaps(self, name: str, empty: np.ndarray) -> None:
        if not empty.any() or name in self.absent:
            return
        if self.fill:
            self.notes.append(f"{int(empty.sum())} empty cells of {name!r} are filled with {self.fill}")
            return
        self.problems.append(
            f"column {name!r} has {int(empty.sum())} empty cells: {self.table.where(np.flatnonzero(empty))}.\n"
            "hint: fill them, or say --missing mean"
        )

    def strangers(self, name: str, texts: np.ndarray, empty: np.ndarray) -> None:
        known = self.known(name)
        odd = ~empty & ~np.isin(texts.astype(str), sorted(known))
        if odd.any():
            taken = f"; taken for {OTHER!r}" if OTHER in known else ""
            self.notes.append(
                f"column {name!r} holds {len(set(texts[odd]))} values that the model never saw, "
                f"in {int(odd.sum())} rows{taken}"
            )

    def known(self, name: str) -> set[str]:
        """The categories of a text column that the model has."""
        return {c[len(name) + 1 :] for c in self.columns if c.startswith(f"{name}=")}


def category_sources(columns: Sequence[str]) -> list[str]:
    """Columns of a table of which a model's flags of categories can be made; their cells are names.

    >>> category_sources(["ward=01", "ward=a=b", "age", "age=x"])
    ['ward', 'ward=a']
    """
    starts = [name[:i] for name in columns for i, letter in enumerate(name) if letter == "=" and i]
    return [s for s in dict.fromkeys(starts) if s not in columns]


def source_in_words(name: str) -> str:
    """The column of a table that a feature needs, without the category that it stands for.

    >>> [source_in_words(n) for n in ("sex=f", "bp is missing", "born: month", "age", "note: x")]
    ['sex', 'bp', 'born', 'age', 'note: x']
    """
    made = re.fullmatch(rf"(.+?)(=.*| is missing|: (days since {ORIGIN}|year|month|weekday|hour))", name)
    return made[1] if made else name


def possible_sources(name: str) -> list[str]:
    """Names that a table's column can have from which a feature is made, the likeliest last.

    >>> possible_sources("sex=f"), possible_sources("bp is missing"), possible_sources("born: month")
    (['sex', 'sex=f'], ['bp', 'bp is missing'], ['born', 'born: month'])
    """
    ends = [i for i, letter in enumerate(name) if letter == "="] + [name.rfind(": ")]
    ends += [len(name) - len(" is missing")] if name.endswith(indicator("")) else []
    return [*(name[:i] for i in reversed(ends) if i > 0), name]
