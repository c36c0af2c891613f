"""A stretch of epochs of particle swarms as one compiled call, where squared errors of a linear network are trained.

In a simulation the server's moves and the clients' losses lie in one process. The mean of the clients' squared errors
is a quadratic form, and `pooled_root` is a root of it. So an epoch is some thousand multiplications, and asking takes
most of the time. The call draws the same numbers from the same generators and does the same sums as `Swarms`, except
that the products inside a loss are added in another order: results are the same up to rounding.

Knows swarms and roots. Does not know clients, engines or networks; the loops themselves are in swarm_kernels.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from motet.parts.swarms import LONGEST, Array, Swarms


def pooled_root(roots: Sequence[Array], weights: Sequence[float]) -> Array:
    """One root of the weighted mean of clients' squared errors, from roots as `gram_root` makes them.

    >>> r = pooled_root([np.array([[2.0, 0], [1, 3]]), np.array([[1.0, 0], [0, 1]])], [1, 1])
    >>> np.round(r @ r.T, 9).tolist()  # the mean of both clients' products
    [[2.5, 1.0], [1.0, 5.5]]
    """
    shares = np.sqrt(np.array(weights, float) / sum(weights))
    stacked = np.concatenate([share * root.T for share, root in zip(shares, roots, strict=True)])
    r: Any = np.linalg.qr(stacked, mode="r")
    return np.ascontiguousarray(r.T)


def advance_by_keeps(swarms: Swarms, keeps: Mapping[str, Tensor], weights: Mapping[str, float]) -> int:
    """As `advance`, from the roots that clients keep."""
    roots = [keeps[c].numpy() for c in weights]
    return advance(swarms, pooled_root(roots, list(weights.values())))


def advance(swarms: Swarms, root: Array) -> int:
    """Move the swarms on by all epochs of their round and return how many; 0, and no change, where epochs must be
    asked one by one: some were already, the best particles' losses are those of other clients, or not finite."""
    best = swarms.gbest[..., 0, :]
    now = np.square(best @ root[:-1] + root[-1]).sum(-1)
    begun = swarms.epoch != int(swarms.before["epoch"])
    if begun or not np.isfinite(swarms.gbest_loss).all() or swarms.others_answered(now):
        return 0
    from motet.parts.swarm_kernels import stretch  # imports numba, which takes a second

    rule, epochs = swarms.rule, swarms.epochs_left
    streams = swarms.before["source"].numpy().view(np.uint64).copy()
    theta, v = _by_number(swarms.theta), _by_number(swarms.before["v"].numpy())
    loss = swarms.loss.reshape(-1, swarms.loss.shape[-1])  # views: changed in place
    alpha, failures = swarms.alpha.reshape(-1), swarms.failures.reshape(-1)
    shares = np.ascontiguousarray(swarms.shares.reshape(3, -1))
    adapt = np.broadcast_to(rule.adapt, swarms.alpha.shape).reshape(-1).copy()
    limits = np.array([rule.alpha_cap or LONGEST, rule.bound, rule.patience, rule.consecutive], float)
    lost = stretch(theta, v, loss, alpha, failures, streams, root, shares, adapt, limits, epochs)
    shape = swarms.theta.shape
    swarms.advanced(_by_number(theta, shape), _by_number(v, shape), streams, epochs, int(lost))
    return epochs


def _by_number(a: Array, shape: tuple[int, ...] = ()) -> Array:
    """(all swarms, numbers, particles) of (..., particles, numbers); back again if `shape` is given."""
    if shape:
        return np.ascontiguousarray(a.transpose(0, 2, 1)).reshape(shape)
    return np.ascontiguousarray(a.reshape(-1, *a.shape[-2:]).transpose(0, 2, 1))
