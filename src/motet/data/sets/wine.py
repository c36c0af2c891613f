"""Wines of three growers (scikit-learn, UCI): 178 wines, 13 chemical measurements."""

from __future__ import annotations

from motet.data.federated import Pool
from motet.data.files.frames import classes_of


def load() -> Pool:
    """A table of numbers, and classes."""
    from sklearn.datasets import load_wine

    return classes_of(load_wine())
