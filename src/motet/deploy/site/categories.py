"""Categories of text that may leave a site: rare ones become "other", and columns of names are refused.

Names of categories leave with the description of a table and go on to all sites. A value that few rows have may
tell of a person, and a column in which most values do is no category at all.
Knows one column's categories. Does not know policies, nor what is sent.
"""

from __future__ import annotations

import numpy as np

from motet.client import Column
from motet.data.learned_columns import OTHER
from motet.data.table_features import TableFeature


def is_text(feature: TableFeature) -> bool:
    return any(c.group for c in feature.columns)


def nearly_unique(counts: np.ndarray, least: int) -> bool:
    """Whether most values are different, or most rows have a value that fewer than `least` rows have.

    >>> nearly_unique(np.array([1, 1, 1, 1, 1, 1]), 1), nearly_unique(np.array([30, 25, 3]), 5)
    (True, False)
    """
    rows = counts.sum()
    return bool(2 * len(counts) > rows or 2 * counts[counts < least].sum() > rows)


def category_counts(feature: TableFeature) -> np.ndarray:
    """(categories,) rows of each."""
    return np.asarray(np.nansum(feature.values, axis=0))


def with_others(name: str, feature: TableFeature, least: int) -> TableFeature:
    """The column with all categories that fewer than `least` rows have as one; one that is called so takes them
    in."""
    rare = category_counts(feature) < least
    if not rare.any():
        return feature
    other = Column(f"{name}={OTHER}", "flag", name)
    joins = rare | np.array([c == other for c in feature.columns])
    kept = {c: feature.values[:, i] for i, c in enumerate(feature.columns) if not joins[i]}
    kept[other] = feature.values[:, joins].sum(1)  # an empty cell stays empty
    columns = sorted(kept, key=lambda c: c.name)
    return TableFeature(np.column_stack([kept[c] for c in columns]), columns)


def with_learned(feature: TableFeature, learned: np.ndarray, least: int) -> TableFeature:
    """The feature without categories that no training row has: of rows for validation and test nothing is said."""
    rows = np.nansum(feature.values[learned], axis=0)
    seen = rows >= 1 if is_text(feature) else rows >= max(least, 1)
    return TableFeature(feature.values[:, seen], [c for c, s in zip(feature.columns, seen, strict=True) if s])
