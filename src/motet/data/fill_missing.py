"""What fills missing cells: means, medians or most frequent values of training rows.

The same functions serve simulations and sites, so that both fill alike to the bit.
Knows arrays of rows. Does not know tables, nor who may learn a value from whom.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from motet.client import Column


def totals(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By column: how many cells are there, and their sum; each column is summed by itself, so that no other column
    changes a bit of it."""
    there = ~np.isnan(rows)
    sums = [column.sum() for column in np.ascontiguousarray(np.where(there, rows, 0.0).T)]
    return there.sum(0).astype(np.float64), np.array(sums, np.float64)


def mean_of_parties(parties: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """(columns,) the mean over all parties' cells, from their totals; 0 where there are none."""
    many, total = (np.sum(values, axis=0) for values in zip(*parties, strict=True))
    return np.asarray(total / np.maximum(many, 1))


def fill_values(rows: np.ndarray, columns: Sequence[Column], how: str) -> np.ndarray:
    """(columns,) what fills missing cells, learned from rows (n, columns); NaN where a column has no cell.

    >>> rows = np.array([[1.0, 0], [2.0, 1], [9.0, 1], [np.nan, np.nan]])
    >>> columns = (Column("age"), Column("ill", "flag"))
    >>> fill_values(rows, columns, "median").tolist(), fill_values(rows, columns, "mean").round(2).tolist()
    ([2.0, 1.0], [4.0, 0.67])
    """
    many, total = totals(rows)
    found = total / np.maximum(many, 1)
    if how in ("median", "most_frequent"):
        for i, column in enumerate(columns):
            cells = rows[~np.isnan(rows[:, i]), i]
            if len(cells) and not column.group:
                middle = how == "median" and column.kind == "number"
                found[i] = np.median(cells) if middle else most_frequent(cells)
        for group in {c.group for c in columns} - {""}:
            at = np.array([c.group == group for c in columns])
            found[at] = np.arange(at.sum()) == np.argmax(
                total[at]
            )  # the first of equally frequent categories
    return np.where(many > 0, found, np.nan)


def most_frequent(cells: np.ndarray) -> float:
    """The smallest of the most frequent values."""
    values, many = np.unique(cells, return_counts=True)
    return float(values[np.argmax(many)])


def shared(fills: np.ndarray) -> np.ndarray:
    """(columns,) what fills rows that are nobody's own: what all clients have, else the mean of it."""
    same = bool((fills == fills[0]).all())
    return np.asarray(fills[0] if same else fills.mean(0))


def with_fallback(own: np.ndarray, others: np.ndarray) -> np.ndarray:
    """A client's values; of columns in which its training rows have no cell, the others' or 0."""
    return np.nan_to_num(np.where(np.isnan(own), others, own), nan=0.0)
