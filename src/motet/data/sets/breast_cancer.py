"""Breast cancer, Wisconsin diagnostic (scikit-learn): 569 tumours, 30 measurements, malignant or benign."""

from __future__ import annotations

from motet.data.federated import Pool
from motet.data.files.frames import classes_of


def load() -> Pool:
    """A table of numbers, and classes."""
    from sklearn.datasets import load_breast_cancer

    return classes_of(load_breast_cancer())
