"""The column of row weights of a user's table: what each row counts, say survey or inverse-probability weights.

Rows of weight 0 count nothing anywhere, so they are left out. Any positive numbers will do: only their ratios matter.
Knows one column of a table. Does not know what is trained or scored by the weights. No message shows a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from motet.data.cell_values import numbers_of
from motet.data.federated import LARGEST_RATIO
from motet.data.table_features import unclear_decimals
from motet.data.table_files import SourceTable
from motet.data.table_settings import TableSettings
from motet.data.tidy_cells import TextColumn, is_text


@dataclass
class WeightReader:
    """Reads the column of weights, and collects what is wrong with it."""

    table: SourceTable
    how: TableSettings
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def weights(self) -> np.ndarray | None:
        """(rows,) at least 0; None without such a column, and where something is wrong with it."""
        name = self.how.weight
        if name not in self.table.frame.columns:
            return None
        if self.how.survival:
            self.problems.append(_NO_SURVIVAL.format(name))
        if name in self.table.unclear:
            self.problems.append(unclear_decimals(self.table, name, self.how))
            return None
        values, empty = self._numbers(name)
        for what, rows, hint in self._faults(values, empty):
            if len(places := np.flatnonzero(rows)):
                where = self.table.where(places)
                self.problems.append(
                    f"the weight {name!r} {what} in {len(places)} rows: {where}.\nhint: {hint}"
                )
        if not self.problems and not values.any():
            self.problems.append(f"the weight {name!r} is 0 in every row: nothing counts")
        if not self.problems:
            self._check_ratio(values)
        return None if self.problems else without_extremes(values)

    def _check_ratio(self, values: np.ndarray) -> None:
        """Numbers of single precision lose rows that count far less than others, and whole clients with them."""
        least = values.max() / LARGEST_RATIO
        lost = (values > 0) & (values < least)
        if lost.any():
            self.problems.append(
                f"the weight {self.how.weight!r} is more than {LARGEST_RATIO:.0g} times as large in some rows as in "
                f"others, and what counts so little cannot be told from nothing. Below a {LARGEST_RATIO:.0g}th of the "
                f"largest are {lost.sum()} rows: {self.table.where(np.flatnonzero(lost))}.\n"
                "hint: write 0 for rows that are to count nothing; or bound the weights (trim them) if the largest "
                "are not meant"
            )

    def _numbers(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Cells as numbers, NaN for text; and which cells are empty."""
        column = self.table.frame[name]
        empty = column.isna().to_numpy()
        if not is_text(column):
            return column.to_numpy(dtype=np.float64, na_value=np.nan), empty
        text = TextColumn(column)
        return np.append(numbers_of(text.texts, ".").values, np.nan)[text.codes], empty

    def _faults(self, values: np.ndarray, empty: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
        drop = self.how.say("drop_rows", "true")
        words = f"if they stand for nothing: {self.how.say('missing_values', ['WORD', 'WORD'])} {drop}"
        return [
            ("is missing", empty, f"leave these rows out: {drop}"),
            ("is no number", np.isnan(values) & ~empty, words),
            ("is infinite", np.isinf(values), f"write numbers; {words}"),
            ("is negative", np.isfinite(values) & (values < 0), f"weights are 0 or more; {words}"),
        ]

    def note_weights(self, weights: np.ndarray, owner: np.ndarray, names: Sequence[str]) -> None:
        """What a person should know: rows and clients that count nothing, and how uneven the weights are."""
        name, zero = self.how.weight, weights == 0
        if zero.any():
            places = self.table.where(np.flatnonzero(zero))
            self.notes.append(f"{zero.sum()} rows with a weight of 0 are left out: {places}")
        silent = [n for k, n in enumerate(names) if (owner == k).any() and zero[owner == k].all()]
        if silent:
            more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
            self.notes.append(f"all weights are 0, so that nothing is left, at {', '.join(silent[:5])}{more}")
        w = weights[~zero]
        even = w.sum() ** 2 / (w**2).sum()  # Kish 1965: equal rows with a mean as sure as that of these
        self.notes.append(
            f"rows count by {name!r}: {len(w):,} rows tell as much as {even:,.0f} of equal weight"
        )


def without_extremes(weights: np.ndarray) -> np.ndarray:
    """The same ratios, in numbers whose squares can be summed.

    >>> without_extremes(np.array([1e300, 5e299])).tolist(), without_extremes(np.array([1.0, 3.0])).tolist()
    ([1.0, 0.5], [1.0, 3.0])
    """
    largest = weights.max()
    return weights if 1e-100 < largest < 1e100 else weights / largest


_NO_SURVIVAL = (
    "the column {0!r} holds weights of rows, and the target is a time of survival, whose concordance counts all rows "
    "alike.\nhint: leave data.weight out, and the column too: data.drop={0}"
)
