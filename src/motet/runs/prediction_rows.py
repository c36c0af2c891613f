"""Predictions for test rows, as a run's folder keeps them: predictions.parquet.

A row for each side, client and test row: side, client, row (its number within the client's test rows), target,
and p0, p1, … (probabilities of the classes) or value (the predicted number). Numbers are in the target's own
unit. Where rows have weights, there is a column `weight`. Statistics of single clients are made of them.
Knows stacked predictions. Does not know how they were made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from motet.client import Task
from motet.core import Client, Tree

FILE = "predictions.parquet"
SIDES = ("personal", "alone", "constant")


class PredictionRows:
    """Gathers what `Engine.evaluate` shows it."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.parts: list[
            tuple[str, Client, Any, Any, Any]
        ] = []  # side, client, targets, predictions, weights

    def add(self, clients: list[Client], found: Tree) -> None:
        """Predictions of some clients, stacked; the personal model may be the global one."""
        targets, weights = self.task.in_own_unit(found["y"].numpy()), found["live"].numpy()
        live = weights > 0
        for side in [s for s in SIDES if s in found]:
            scores = found["global"] if isinstance(found[side], tuple) else found[side]
            answers = self.task.answers(scores.numpy()).astype(np.float32)
            for i, client in enumerate(clients):
                at = live[i]
                self.parts.append((side, client, targets[i][at], answers[i][at], weights[i][at]))

    def write(self, folder: Path) -> None:
        """Write the file, if there is anything to write: between organisations, predictions stay at home."""
        import pandas as pd

        if not self.parts:
            return
        parts = sorted(self.parts, key=lambda p: (SIDES.index(p[0]), p[1]))
        sizes = [len(targets) for _, _, targets, _, _ in parts]
        predicted, weight = (np.concatenate([p[k] for p in parts]) for k in (3, 4))
        columns = (
            {"value": predicted} if predicted.ndim == 1 else {f"p{k}": v for k, v in enumerate(predicted.T)}
        )
        frame = pd.DataFrame(
            {
                "side": np.repeat([p[0] for p in parts], sizes),
                "client": np.repeat([p[1] for p in parts], sizes),
                "row": np.concatenate([np.arange(n) for n in sizes]),
                "target": np.concatenate([p[2] for p in parts]),
            }
            | columns
            | ({} if (weight == 1).all() else {"weight": weight})
        )
        (folder / FILE).unlink(missing_ok=True)  # a file that has this name as well keeps what it holds
        frame.to_parquet((folder / FILE).absolute())
