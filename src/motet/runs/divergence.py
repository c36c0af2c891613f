"""Divergence: a model whose validation loss no sound model has. It ends a run with the reason.

The loss of the constant model is known without training: the mean of squared targets, which are standardised, or
log K for K classes. A single client's model may be poor, and one strange row may cost a sound model a hundred times
the constant loss. So a client's loss counts as diverged at ten thousand times the constant one, and the median of
all clients at a thousand times. An overconfident classifier has losses of some tens, and still finds classes. So
classes count as diverged at a thousand and at a hundred times log K, and only where the balanced accuracy is at most
one half; numbers only where the errors are a hundred times those of the client's own mean. Equal risks of n rows cost
log n at most, so survival counts as classes do, where the concordance is at most one half.
Losses that are no numbers always count. What a client tests on is never looked at.
A run that has diverged is no result, even if an earlier round was sound: with a smaller rate, that round would have
had successors. So rates that motet chose are halved, and the run goes on from its last sound round (trainer.py).
Knows scores. Does not know methods or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from motet.client.losses import Kind
from motet.errors import RunError

_ONE = {
    "numbers": 10_000.0,
    "classes": 1_000.0,
    "survival": 1_000.0,
}  # times the constant loss, for a single client
_ALL = {"numbers": 1_000.0, "classes": 100.0, "survival": 100.0}  # for the median of all clients
_GUESSED = 0.5 + 1e-9  # balanced accuracy of two classes by guessing
_WORSE = -100.0  # r2 of errors that are far beyond those of the mean


class Diverged(RunError):
    """Training has diverged; says in which round, and whose loss shows it."""

    def __init__(self, text: str, whose: str = "") -> None:
        super().__init__(text)
        self.whose = whose  # "client a", or how many of them; "" where no learning rate is to blame


def diverged(
    kind: Kind, outputs: int, clients: Sequence[str], scores: Mapping[str, Tensor]
) -> tuple[str, str]:
    """Whose loss is out of all bounds, and the loss, in words; nobody's: ("", ""). `scores` are metrics by client, and
    `n`."""
    s = {k: scores[k].double().numpy() for k in ("n", "loss", "balanced", "r2", "cindex") if k in scores}
    some = np.flatnonzero(s["n"])
    if not len(some):
        return "", ""
    loss = s["loss"][some]
    if kind == "numbers":  # targets are standardised; r2 is 0 where there is a single value
        constant, lost = 1.0, (s["r2"][some] < _WORSE) | (s["r2"][some] == 0)
    elif kind == "survival":  # nan where no pair can be compared
        constant, lost = math.log(max(s["n"][some].max(), 2)), ~(s["cindex"][some] > _GUESSED)
    else:
        constant, lost = math.log(max(outputs, 2)), s["balanced"][some] <= _GUESSED
    bad = ~np.isfinite(loss) | (lost & (loss > _ONE[kind] * constant))
    if bad.any():
        worst = int(np.where(bad, np.nan_to_num(loss, nan=np.inf), -np.inf).argmax())
        return f"client {clients[some[worst]]}", f"{loss[worst]:.3g}"
    middle = float(np.median(loss))
    if lost.mean() > 0.5 and middle > _ALL[kind] * constant:
        return "half of the clients", f"{middle:.3g} or more"
    return "", ""
