"""New rows for a trained model: its columns are found by name in a table.

Knows tables and names of columns. Does not know models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from motet.data.federated import refuse
from motet.data.table_files import SourceTable
from motet.data.user_table import OTHER
from motet.text import nearest


@dataclass
class NewRows:
    """New rows in a model's columns; collects all problems with them."""

    table: SourceTable
    columns: Sequence[str]
    absent: Sequence[str] = ()  # columns that the model's owner did not hold: the table need not have them
    fill: bool = False
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def values(self) -> np.ndarray:
        """(rows, columns); NaN for empty cells that are allowed."""
        found = [self.column(c) for c in self.columns]
        refuse(self.problems)
        return np.column_stack(found)

    def column(self, name: str) -> np.ndarray:
        frame = self.table.frame
        if name in frame.columns:
            return self.number(name)
        for at in (i for i, letter in enumerate(name) if letter == "="):
            if name[:at] in frame.columns:
                return self.flag(name[:at], name[at + 1 :])
        if name not in self.absent:
            self.problems.append(f"there is no column {name!r}.\nhint: {nearest(name, list(frame.columns))}")
        return np.full(len(frame), np.nan)

    def number(self, name: str) -> np.ndarray:
        import pandas as pd

        column = self.table.frame[name]
        values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        empty = column.isna().to_numpy()
        if len(bad := np.flatnonzero(~np.isfinite(values) & ~empty)):
            parts = self.table.samples(bad, [str(column.iloc[i]) for i in bad[:5]])
            self.problems.append(f"column {name!r} must hold numbers, and these are none: {parts}")
        self.gaps(name, empty)
        return np.asarray(values)

    def flag(self, name: str, value: str) -> np.ndarray:
        column = self.table.frame[name]
        empty = column.isna().to_numpy()
        texts = column.astype(object).map(str, na_action="ignore").to_numpy()
        if f"{name}={value}" == next(c for c in self.columns if c.startswith(f"{name}=")):
            self.gaps(name, empty)
            self.strangers(name, texts, empty)
        here = texts == value
        if value == OTHER:
            here |= ~np.isin(texts.astype(str), sorted(self.known(name)))
        return np.where(empty, np.nan, here.astype(float))

    def gaps(self, name: str, empty: np.ndarray) -> None:
        if not empty.any() or name in self.absent:
            return
        where = self.table.where(np.flatnonzero(empty))
        if self.fill:
            self.notes.append(f"{int(empty.sum())} empty cells of {name!r} are filled with the training mean")
        else:
            self.problems.append(
                f"column {name!r} has {int(empty.sum())} empty cells: {where}.\n"
                "hint: fill them, or say --missing mean"
            )

    def strangers(self, name: str, texts: np.ndarray, empty: np.ndarray) -> None:
        if odd := sorted({str(t) for t in texts[~empty]} - (known := self.known(name))):
            more = ", …" if len(odd) > 5 else ""
            taken = f"; taken for {OTHER!r}" if OTHER in known else ""
            self.notes.append(
                f"column {name!r} holds values that the model never saw: {', '.join(odd[:5])}{more}{taken}"
            )

    def known(self, name: str) -> set[str]:
        """The categories of a text column that the model has."""
        return {c[len(name) + 1 :] for c in self.columns if c.startswith(f"{name}=")}
