"""Divergence: a model whose validation loss no sound model has. It ends a run with the reason.

The loss of the constant model is known without training: the mean of squared targets, which are standardised, or
log K for K classes. A single client's model may be poor, and one strange row may cost a sound model a hundred times
the constant loss. So a client's loss counts as diverged at ten thousand times the constant one, and the median of
all clients at a thousand times. An overconfident classifier has losses of some tens, and still finds classes. So
classes count as diverged at a thousand and at a hundred times log K, and only where the accuracy is not above the
share of the largest class.
Losses that are no numbers always count. What a client tests on is never looked at.
A run that has diverged is no result, even if an earlier round was sound: with a smaller rate, that round would have
had successors.
Knows sums of scores. Does not know methods or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from motet.client.task import Kind
from motet.errors import RunError

_ONE = {"numbers": 10_000.0, "classes": 1_000.0}  # times the constant loss, for a single client
_ALL = {"numbers": 1_000.0, "classes": 100.0}  # for the median of all clients


class Diverged(RunError):
    """Training has diverged; says in which round, and whose loss shows it."""


def diverged(kind: Kind, scale: float, clients: Sequence[str], sums: Mapping[str, Tensor]) -> str:
    """Whose loss is out of all bounds, in words; "" if nobody's is. `sums` are those of Task.metric_sums, stacked."""
    s = {k: v.double().numpy() for k, v in sums.items()}
    some = np.flatnonzero(s["n"])
    if not len(some):
        return ""
    n = s["n"][some]
    loss = s["loss"][some] / n
    if kind == "numbers":
        constant = np.maximum(1.0, s["yy"][some] / n / scale**2)
        lost = np.ones(len(some), bool)
    else:
        constant = np.full(len(some), math.log(max(s["truth"].shape[-1], 2)))
        lost = s["right"][some].sum(-1) <= s["truth"][some].max(-1)
    bad = ~np.isfinite(loss) | (lost & (loss > _ONE[kind] * constant))
    if bad.any():
        worst = int(np.flatnonzero(bad)[0])
        return f"the validation loss of client {clients[some[worst]]} is {loss[worst]:.3g}"
    middle = float(np.median(loss))
    if lost.mean() > 0.5 and middle > _ALL[kind] * np.median(constant):
        return f"the validation loss of half of the clients is {middle:.3g} or more"
    return ""


def mean_loss(sums: Mapping[str, Tensor]) -> float:
    """The mean over clients of their mean loss; infinite without any."""
    n = sums["n"].double()
    loss = (sums["loss"].double() / n.clamp(min=1))[n > 0]
    return float(loss.mean()) if len(loss) else math.inf
