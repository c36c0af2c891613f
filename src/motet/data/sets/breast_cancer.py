"""Breast cancer, Wisconsin diagnostic (scikit-learn): 569 tumours, 30 measurements, malignant or benign."""

from __future__ import annotations

import numpy as np

from motet.client import Column
from motet.data.federated import Pool


def load() -> Pool:
    """A table of numbers, and classes."""
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    columns = tuple(map(Column, map(str, raw.feature_names)))
    return Pool(raw.data, raw.target.astype(np.int64), "classes", tuple(map(str, raw.target_names)), columns)
