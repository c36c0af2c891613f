"""The loss that a method is told to minimise, a user's own function, as a metric of validation and test rows.

Knows one function and predictions of clients. Does not know networks, nor how anything is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature

import numpy as np
import torch
from torch import Tensor

from motet.client.metrics import Array, MetricFailed, OwnMetric


@dataclass(frozen=True)
class OwnLoss(OwnMetric):
    """`function(scores, y)` or `function(scores, y, x)`, called with tensors as in training: scores as the network
    gives them, targets as they are trained. Smaller is better. A client has no score where it is not finite."""

    @property
    def better(self) -> int:
        return -1

    @property
    def takes_inputs(self) -> bool:
        return len(signature(self.function).parameters) > 2

    def of_scores(
        self, clients: Sequence[str], scores: Tensor, y: Tensor, live: Tensor, x: Tensor | None
    ) -> Array:
        """One loss for each client, of stacked predictions; nan where it has none."""
        there = [np.flatnonzero(some.numpy() > 0) for some in live]
        found = [
            self.of_rows(c, scores[i][at], y[i][at], None if x is None else x[i][at]) if len(at) else np.nan
            for i, (c, at) in enumerate(zip(clients, map(torch.from_numpy, there), strict=True))
        ]
        return np.array(found, np.float64)

    def of_rows(self, client: str, scores: Tensor, y: Tensor, x: Tensor | None) -> float:
        if self.takes_inputs and x is None:
            return float("nan")
        scores = scores.double() if scores.is_floating_point() else scores
        try:
            loss = float(self.function(scores, y, *([x] if self.takes_inputs else [])))  # type: ignore[arg-type]
        except Exception as e:  # whatever a user's function raises is the user's to know
            raise MetricFailed(
                f"the loss {self.name}, client {client or '?'}: {type(e).__name__}: {e}\n"
                "hint: function(scores, y) must return a number for the rows of any client"
            ) from e
        return loss if np.isfinite(loss) else float("nan")
