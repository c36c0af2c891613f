"""The cells of one file's text columns: without spaces around them, missing where they say so, numbers where they are.

Knows one frame of cells. Does not know files, nor what the columns mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from motet.data.cell_values import MISSING, Numbers, numbers_of

if TYPE_CHECKING:
    import pandas as pd

_WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0")
_CELLS = (str, int, float, bool, np.generic)


@dataclass(frozen=True)
class HowWritten:
    """How the cells of a file are written."""

    decimal: str = "auto"  # the decimal sign: "." or ","; auto: found by file
    missing: tuple[str, ...] = ()  # words for nothing, besides the usual ones
    semicolons: bool = False  # between cells: then a comma is a decimal sign, unless cells say otherwise
    untyped: bool = True  # text may be a number like any other; False: the file says which columns are text
    likely: str = ""  # the sign of a file whose cells do not tell it: "." or ","; "": not known
    texts: frozenset[str] = frozenset()  # columns that hold no numbers, whatever they look like


@dataclass(frozen=True)
class Tidied:
    """A frame with tidy cells."""

    frame: pd.DataFrame
    unclear: list[str]  # columns of which nobody knows whether 1,234 is more than a thousand
    sign: str  # the decimal sign of a file with commas in its numbers; "": there are none, or they differ


AsWritten = Callable[[list[str]], "pd.DataFrame"]  # columns of the same rows before they were made numbers


def tidy(frame: pd.DataFrame, how: HowWritten, as_written: AsWritten | None = None) -> Tidied:
    """The frame with tidy cells. A file has one decimal sign: a column that fits both goes by the others, then by
    what is likely, then by semicolons between cells. Where the others differ, nobody knows."""
    columns = {c: TextColumn(frame[c], how.missing) for c in frame.columns if is_text(frame[c])}
    found = {c: numbers_of(t.texts, how.decimal) for c, t in columns.items() if c not in how.texts}
    new = {c: columns[c].names() for c in columns if c not in found}
    commas = "," in (how.decimal, how.likely) or any(n.decimal != "." for n in found.values())
    floats = [c for c in frame.columns if frame[c].dtype.kind == "f"]
    if as_written and commas and floats:  # 1.234 was made a number before anybody knew the sign
        written = as_written(floats)
        columns |= {c: TextColumn(written[c], how.missing) for c in floats}
        found |= {c: numbers_of(columns[c].texts, how.decimal) for c in floats}
    sign = _sign_of_file({c: columns[c] for c in found}, found, how)
    unclear = []
    for name, numbers in found.items():
        numbers = _with_sign(columns[name], numbers, sign)
        unclear += [name] * (numbers.decimal == "?")
        if numbers.decimal == "," or name not in floats:
            new[name] = columns[name].tidied(numbers, how.untyped)
    for name in frame.columns:
        if how.missing and name not in new and frame[name].dtype.kind in "iuf":
            new[name] = _without_numbers(frame[name], how.missing)
    return Tidied(frame.assign(**new) if new else frame, unclear, sign if commas else "")


def _sign_of_file(columns: dict[str, TextColumn], found: dict[str, Numbers], how: HowWritten) -> str:
    """The sign for columns that do not tell their own; "" if nothing tells it."""
    said = {n.decimal for c, n in found.items() if n.clear and columns[c].mostly_numbers(n)}
    if said:
        return said.pop() if len(said) == 1 else ""
    return how.likely or ("," if how.semicolons else "")


def _with_sign(column: TextColumn, numbers: Numbers, sign: str) -> Numbers:
    """Numbers with the sign of their file, where the column does not tell its own."""
    if numbers.clear or not sign or sign == numbers.decimal:
        return numbers
    return numbers_of(column.texts, sign) if numbers.decimal == "?" or column.has_points else numbers


def is_text(column: pd.Series) -> bool:
    """Whether all cells are text, or can be written as text."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(column):
        return True
    return bool(column.dtype == object and all(isinstance(v, _CELLS) for v in column.dropna()))


class TextColumn:
    """A column of text, looked at by its different values."""

    def __init__(self, column: pd.Series, missing: Collection[str] = ()) -> None:
        import pandas as pd

        self.column = column
        self.codes, given = pd.factorize(column.astype(object))  # -1 is an empty cell
        self.given = [str(v) for v in given]
        self.texts = [v.strip() for v in self.given]
        self.no_numbers = numbers_in(missing)
        self.blank = np.array([t in MISSING or t in missing for t in self.texts], bool)

    @cached_property
    def many(self) -> np.ndarray:
        """(texts,) cells of each that are not missing."""
        return np.where(self.blank, 0, np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts)))

    @cached_property
    def has_points(self) -> bool:
        return any("." in t for t in self.texts)

    def mostly_numbers(self, numbers: Numbers) -> bool:
        """Whether at least half of the cells are numbers."""
        cells = self.many.sum()
        return bool(cells and 2 * self.many[~np.isnan(numbers.values)].sum() >= cells)

    def tidied(self, numbers: Numbers, untyped: bool = True) -> pd.Series:
        """Numbers if at least half of the cells are, with the others as text; else text."""
        written = numbers.decimal == "," or any("," in t or " " in t for t in self.texts)
        if (untyped or written) and self.mostly_numbers(numbers):
            return self._numbers(numbers)
        return self.text()

    def text(self) -> pd.Series:
        """Text without spaces around it."""
        if not self.blank.any() and self.given == self.texts:
            return self.column
        return self._cells([np.nan if b else t for t, b in zip(self.texts, self.blank, strict=True)])

    def names(self) -> pd.Series:
        """Text that names something, so that 01 is not 1. Whole numbers that all have `.0` were a column of numbers
        with empty cells once: they lose it."""
        if not all(_WHOLE.fullmatch(t) for t, b in zip(self.texts, self.blank, strict=True) if not b):
            return self.text()
        short = [np.nan if b else t[:-2] for t, b in zip(self.texts, self.blank, strict=True)]
        return self._cells(short)

    def _numbers(self, numbers: Numbers) -> pd.Series:
        import pandas as pd

        blank = self.blank | numbers.nothing | np.isin(numbers.values, self.no_numbers)
        wrong = np.isnan(numbers.values) & ~blank
        values = np.where(blank, np.nan, numbers.values)
        if not wrong.any():
            return pd.Series(np.append(values, np.nan)[self.codes], self.column.index)
        return self._cells([t if w else v for t, v, w in zip(self.texts, values, wrong, strict=True)])

    def _cells(self, values: Sequence[object]) -> pd.Series:
        """A cell for each row, from one value for each text."""
        import pandas as pd

        every = np.array([*values, np.nan], object)
        return pd.Series(every[self.codes], self.column.index, dtype=object)


def numbers_in(words: Collection[str]) -> list[float]:
    """Numbers among the words for nothing: -999 also stands for -999.00."""
    found = [float(numbers_of([w]).values[0]) for w in words]
    return [v for v in found if not np.isnan(v)]


def _without_numbers(column: pd.Series, missing: Collection[str]) -> pd.Series:
    """A column of numbers, without those that stand for nothing, say -999."""
    numbers = numbers_in(missing)
    return column.mask(column.isin(numbers)) if numbers else column
