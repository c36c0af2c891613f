"""Whose statistics a BatchNorm layer normalises by. A network says so in its attribute `statistics`:

averaged  running means and variances are learned at home, travel with the weights, and are averaged
local     they never leave: nothing is sent, and a client measures its own before it predicts
shared    fixed at the start, the same for all and for good; what is in a batch plays no part

Statistics are entries of the weights (`….running_mean`, `….running_var`), without a gradient.
Knows names of weights, and whether this thread is training. Does not know networks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from motet.vec import Vec

POLICIES = ("averaged", "local", "shared")
_NAMES = ("running_mean", "running_var")
_thread = threading.local()


def statistics(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the weights that are statistics.

    >>> statistics(["norm.weight", "norm.running_mean"])
    ('norm.running_mean',)
    """
    return tuple(k for k in names if k.rpartition(".")[2] in _NAMES)


def weights_of(u: Vec) -> Vec:
    """The same with zeros for statistics: what decay and the like may touch."""
    still = statistics(u)
    return Vec(dict(u) | {k: u[k] * 0 for k in still}) if still else u


def with_statistics_of(u: Vec, other: Vec) -> Vec:
    """u with the statistics of another: a step changes weights only."""
    still = statistics(u)
    return Vec(dict(u) | {k: other[k] for k in still}) if still else u


@contextmanager
def training_mode() -> Iterator[None]:
    """Inside, this thread trains: batches are normalised by their own statistics."""
    before, _thread.on = is_training(), True
    try:
        yield
    finally:
        _thread.on = before


def is_training() -> bool:
    return getattr(_thread, "on", False)
