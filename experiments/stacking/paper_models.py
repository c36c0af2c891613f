"""Public models of several families, for mixed federations, with scikit-learn's fit and predict_proba.

Knows how each family is made for a table of numbers and flags. Does not know who publishes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FAMILIES = ("boosting", "dp-logistic", "network")  # beside forests
EPSILON = 1.0  # privacy budget of dp-logistic; delta is 1e-5


def of_family(name: str, seed: int, low: Array, high: Array) -> Any:
    """An unfitted classifier. `low` and `high` are the publicly known ranges of the columns."""
    if name == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(random_state=seed)
    if name == "dp-logistic":
        from motet.guard.private_models.dp_network import DPLogistic

        bounds = np.column_stack([low, np.maximum(high, low + 1e-6)])
        return DPLogistic(EPSILON, bounds=bounds, classes=[0, 1], random_state=seed)
    if name == "network":
        return Network(seed)
    raise ValueError(f"there is no family {name!r}; there are forest, {', '.join(FAMILIES)}")


class Network:
    """A layer of 32 hidden units on standardised columns, trained by motet's one loop."""

    def __init__(self, seed: int, hidden: int = 32, epochs: int = 10) -> None:
        self.seed, self.hidden, self.epochs = seed, hidden, epochs

    def fit(self, x: Array, y: Array) -> Network:
        import torch
        from torch import nn

        from motet.client import Batch, Data, Task, descend

        self.classes_ = np.unique(y)
        self.middle, self.spread = x.mean(0), np.maximum(x.std(0), 1e-6)
        many, width = len(self.classes_), x.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            net = nn.Sequential(nn.Linear(width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, many))
        self.task = Task(net, "classes", many)
        rows = torch.from_numpy(self.standard(x)), torch.from_numpy(np.searchsorted(self.classes_, y))
        nothing = Batch.of(rows[0][:0], rows[1][:0])
        data = Data(*rows, torch.tensor(len(y)), torch.tensor(self.seed), nothing)
        how = {"lr": 0.05, "epochs": self.epochs, "batch": 64, "momentum": 0.9}
        self.w = descend(self.task.loss, self.task.w0, data, **how)  # type: ignore[arg-type]
        return self

    def standard(self, x: Array) -> Array:
        return np.asarray((x - self.middle) / self.spread, np.float32)

    def predict_proba(self, x: Array) -> Array:
        import torch

        found: Array = self.task.predict(self.w, torch.from_numpy(self.standard(x))).softmax(1).numpy()
        return found
