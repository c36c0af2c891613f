"""Random forests: scikit-learn-intelex where it is installed, scikit-learn otherwise.

Both grow the same kind of trees (scikit-learn's defaults: 100 of them, without a limit of depth) from
other random numbers. Intel's takes about a quarter of the time for the few columns of a meta-model.
Knows how forests are made and asked. Does not know whose they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def forest(kind: str, seed: int, trees: int = 100, *, plain: bool = False) -> Any:
    """A forest to be fitted by one thread; `plain` asks for scikit-learn's own."""
    name = "RandomForestClassifier" if kind == "classes" else "RandomForestRegressor"
    return getattr(_library(plain), name)(n_estimators=trees, random_state=seed % 2**31, n_jobs=1)


def _library(plain: bool) -> Any:
    import sklearn.ensemble

    if plain:
        return sklearn.ensemble
    try:
        import sklearnex.ensemble
    except ImportError:
        return sklearn.ensemble
    return sklearnex.ensemble


def scores(model: Any, x: Array, classes: Sequence[Any]) -> Array:
    """(rows, columns): probabilities of all classes but the first of two, or predicted numbers.

    Columns are in the order of `classes`; a class that the model has never seen has probability 0.
    """
    if not len(classes):
        return np.asarray(model.predict(x), np.float32).reshape(len(x), -1)
    found = np.asarray(model.predict_proba(x), np.float32)
    wide = np.zeros((len(x), len(classes)), np.float32)
    wide[:, [list(classes).index(c) for c in model.classes_]] = found
    return wide[:, 1:] if len(classes) == 2 else wide
