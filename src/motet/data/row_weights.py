"""The column of row weights of a user's table: what each row counts, say survey or inverse-probability weights.

Rows of weight 0 count nothing anywhere, so they are left out. Any positive numbers will do: only their ratios matter.
Knows one column of a table. Does not know what is trained or scored by the weights. No message shows a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from motet.data.cell_values import numbers_of
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
        return None if self.problems else values

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


_NO_SURVIVAL = (
    "the column {0!r} holds weights of rows, and the target is a time of survival, whose concordance counts all rows "
    "alike.\nhint: leave data.weight out, and the column too: data.drop={0}"
)
