"""How many rounds lie between two evaluations, where a recipe leaves it open.

Chosen from counts of rows, never by the clock, so that a recipe gives the same bits on every machine. The unit of
cost is a forward pass over one row; a training step over a row costs three (forward, and backward twice as much).
Knows counts of rows and a method's epochs. Does not evaluate anything.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from motet.client import ClientData
from motet.client.population import sizes_of
from motet.core import Method
from motet.runs.sections import TrainSettings

SHARE = 0.1  # evaluation may cost about this share of training
LEAST = 10  # evaluations in a run, at least about so many
_STEP = 3  # forward passes that a training step over a row costs


def epochs_of(method: Method) -> int:
    """Local epochs in a round; the most where clients choose them."""
    return int(getattr(method, "epochs", 0) or getattr(method, "epochs_max", 1))


def steps_in_round(method: Method, n: int) -> int:
    """Local steps of a client with n rows in a round."""
    batch, steps = int(getattr(method, "batch", n)), int(getattr(method, "steps", 0))
    return steps or -(-n // batch) * epochs_of(method)


def rows_in_round(method: Method, n: int) -> int:
    """Rows that a client with n of them trains on in a round, each counted as often as it is visited."""
    batch, steps = int(getattr(method, "batch", n)), int(getattr(method, "steps", 0))
    return steps * min(n, batch) if steps else n * epochs_of(method)


def rounds_between(
    train: TrainSettings,
    method: Method,
    clients: Mapping[str, ClientData],
    trainees: int,
    share: float = 1.0,
) -> int:
    """The interval at which evaluating this share of the clients costs about a tenth of what `trainees` of them cost
    in training; at most as long as leaves ten evaluations, and three within the run's patience."""
    sizes, many = np.unique(sizes_of(clients)[:, :2], axis=0, return_counts=True)
    groups = list(zip(sizes.tolist(), many.tolist(), strict=True))  # clients of the same size at once
    rows, val = (sum(size[part] * k for size, k in groups) for part in (0, 1))
    cost = (val + _STEP * method.epochs_at_evaluation() * rows) * share
    trained = sum(rows_in_round(method, size[0]) * k for size, k in groups)
    training = _STEP * trained * trainees / len(clients)
    wanted = int(cost / (SHARE * training) + 0.5)
    most = min(train.rounds // LEAST, train.patience // 3 if train.patience else train.rounds)
    return max(1, min(wanted, most))
