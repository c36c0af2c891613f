"""The cells of one file's text columns: without spaces around them, missing where they say so, numbers where they are.

Knows one frame of cells. Does not know files, nor what the columns mean.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from motet.data.cell_values import MISSING, Numbers, numbers_of

if TYPE_CHECKING:
    import pandas as pd

_CELLS = (str, int, float, bool, np.generic)


@dataclass(frozen=True)
class HowWritten:
    """How the cells of a file are written."""

    decimal: str = "auto"  # the decimal sign: "." or ","; auto: found by column
    missing: tuple[str, ...] = ()  # words for nothing, besides the usual ones
    semicolons: bool = False  # between cells: then a comma is a decimal sign
    untyped: bool = True  # text may be a number like any other; False: the file says which columns are text


def tidy(frame: pd.DataFrame, how: HowWritten) -> tuple[pd.DataFrame, list[str]]:
    """The frame with tidy cells, and the columns of which nobody knows whether 1,234 is more than a thousand.

    A file has one decimal sign: a column that fits both goes by the others, or by semicolons between cells.
    """
    columns = {c: TextColumn(frame[c], how.missing) for c in frame.columns if is_text(frame[c])}
    found = {c: numbers_of(t.texts, how.decimal) for c, t in columns.items()}
    commas = how.semicolons or any(
        n.decimal == "," and columns[c].mostly_numbers(n) for c, n in found.items()
    )
    unclear, new = [], {}
    for name, column in columns.items():
        numbers = found[name]
        if numbers.decimal == "?" and commas:
            numbers = numbers_of(column.texts, ",")
        if numbers.decimal == "?":
            unclear.append(name)
        new[name] = column.tidied(numbers, how.untyped)
    for name in frame.columns:
        if how.missing and name not in new and frame[name].dtype.kind in "iuf":
            new[name] = _without_numbers(frame[name], how.missing)
    return (frame.assign(**new) if new else frame), unclear


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
        self.blank = np.array([t in MISSING or t in missing for t in self.texts], bool)

    @cached_property
    def many(self) -> np.ndarray:
        """(texts,) cells of each that are not missing."""
        return np.where(self.blank, 0, np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts)))

    def mostly_numbers(self, numbers: Numbers) -> bool:
        """Whether at least half of the cells are numbers."""
        cells = self.many.sum()
        return bool(cells and 2 * self.many[~np.isnan(numbers.values)].sum() >= cells)

    def tidied(self, numbers: Numbers, untyped: bool = True) -> pd.Series:
        """Numbers if at least half of the cells are, with the others as text; else text."""
        written = numbers.decimal == "," or any("," in t or " " in t for t in self.texts)
        if (untyped or written) and self.mostly_numbers(numbers):
            return self._numbers(numbers)
        if not self.blank.any() and self.given == self.texts:
            return self.column
        return self._cells([np.nan if b else t for t, b in zip(self.texts, self.blank, strict=True)])

    def _numbers(self, numbers: Numbers) -> pd.Series:
        import pandas as pd

        blank = self.blank | numbers.nothing
        wrong = np.isnan(numbers.values) & ~blank
        values = np.where(blank, np.nan, numbers.values)
        if not wrong.any():
            return pd.Series(np.append(values, np.nan)[self.codes], self.column.index)
        return self._cells([t if w else v for t, v, w in zip(self.texts, values, wrong, strict=True)])

    def _cells(self, values: list[object]) -> pd.Series:
        """A cell for each row, from one value for each text."""
        import pandas as pd

        every = np.array([*values, np.nan], object)
        return pd.Series(every[self.codes], self.column.index, dtype=object)


def _without_numbers(column: pd.Series, missing: Collection[str]) -> pd.Series:
    """A column of numbers, without those that stand for nothing, say -999."""
    numbers = [float(v) for v in missing if not np.isnan(numbers_of([v]).values[0])]
    return column.mask(column.isin(numbers)) if numbers else column
