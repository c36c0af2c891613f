"""Wines of three growers (scikit-learn, UCI): 178 wines, 13 chemical measurements."""

from __future__ import annotations

import numpy as np

from motet.client import Column
from motet.data.federated import Pool


def load() -> Pool:
    """A table of numbers, and classes."""
    from sklearn.datasets import load_wine

    raw = load_wine()
    columns = tuple(map(Column, map(str, raw.feature_names)))
    return Pool(raw.data, raw.target.astype(np.int64), "classes", tuple(map(str, raw.target_names)), columns)
