"""Diabetes (scikit-learn; Efron et al. 2004): 442 patients, 10 measurements, progression after a year."""

from __future__ import annotations

import numpy as np

from motet.client import Column
from motet.data.federated import Pool


def load() -> Pool:
    """A table of numbers; sex is 1 or 2 and stays a number column."""
    from sklearn.datasets import load_diabetes

    raw = load_diabetes(scaled=False)
    columns = tuple(map(Column, map(str, raw.feature_names)))
    return Pool(raw.data, raw.target.astype(np.float64), "numbers", columns=columns)
