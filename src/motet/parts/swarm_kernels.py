"""The loops of a stretch of epochs, compiled by numba where it is installed.

Without numba they are ordinary Python: right, and far too slow to be used. Particles are the last axis of all arrays,
so that the innermost loops become vector instructions. Nothing else of motet imports numba.
Knows arrays. Does not know what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from motet.parts.swarms import LONGEST, ROUNDING, Array

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:

    def njit(**options: Any) -> Callable[[F], F]: ...

else:
    try:
        from numba import njit
    except ImportError:

        def njit(**options: Any) -> Any:
            return lambda f: f


_BLOCK = 8  # epochs whose draws are made at once: they fit into a core's nearest memory
compiled = njit(cache=True, error_model="numpy")


@compiled
def draw(s: Array, out: Array, epochs: int) -> None:
    """R1 in [0, 1) and half of R2 in [-0.5, 0.5) of some epochs, from SFC64 at the position s, as NumPy draws them."""
    a, b, c, count = s[0], s[1], s[2], s[3]
    _, _, numbers, particles = out.shape
    for epoch in range(epochs):
        for which in range(2):
            for p in range(particles):
                for i in range(numbers):
                    now = a + b + count
                    count += np.uint64(1)
                    a = b ^ (b >> np.uint64(11))
                    b = c + (c << np.uint64(3))
                    c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + now
                    out[epoch, which, i, p] = np.float64(now >> np.uint64(11)) * 2.0**-53 - 0.5 * which
    s[0], s[1], s[2], s[3] = a, b, c, count


@compiled
def propose(
    theta: Array, v: Array, best: int, factors: Array, alpha: float, shares: Array, bound: float, tried: Array
) -> None:
    """v = alpha (w1 v + w2 R1 (gbest - theta) + w3 R2) in place, and theta + v."""
    w1, w2, w3 = shares[0] * alpha, shares[1] * alpha, shares[2] * alpha
    numbers, particles = theta.shape
    for i in range(numbers):
        at = theta[i, best]
        for p in range(particles):
            step = (at - theta[i, p]) * factors[0, i, p] * w2 + v[i, p] * w1 + factors[1, i, p] * w3
            step = min(max(step, -LONGEST), LONGEST)
            v[i, p] = step
            tried[i, p] = theta[i, p] + step
        if bound > 0:
            for p in range(particles):
                tried[i, p] = min(max(tried[i, p], -bound), bound)


@compiled
def squared_errors(tried: Array, root: Array, new: Array, miss: Array) -> int:
    """Losses of the candidates, infinite where they are not finite; how many of these. The root is a triangle."""
    numbers, particles = tried.shape
    new[:] = 0.0
    for j in range(root.shape[1]):
        miss[:] = root[numbers, j]
        for i in range(j, numbers):
            r = root[i, j]
            for p in range(particles):
                miss[p] += tried[i, p] * r
        for p in range(particles):
            new[p] += miss[p] * miss[p]
    lost = 0
    for p in range(particles):
        if not np.isfinite(new[p]):
            new[p] = np.inf
            lost += 1
    return lost


@compiled
def accept(theta: Array, loss: Array, best: int, tried: Array, new: Array) -> bool:
    """Particles whose candidate has a lower loss move there; whether the best loss falls."""
    numbers, particles = theta.shape
    before, lowest = loss[best], loss[best]
    for p in range(particles):
        if new[p] >= loss[p]:
            continue
        moved = loss[p] - new[p] > ROUNDING * abs(new[p])
        for i in range(numbers):
            moved = moved or tried[i, p] != theta[i, p]
        if moved:  # a particle that stays where it is may seem to gain by rounding
            loss[p] = new[p]
            lowest = min(lowest, new[p])
            for i in range(numbers):
                theta[i, p] = tried[i, p]
    return bool(lowest < before)


@compiled
def adapt_one(alpha: Array, failures: Array, k: int, fell: bool, adapt: bool, limits: Array) -> None:
    """alpha doubles where the best loss fell, and halves after `patience` failures."""
    cap, patience, consecutive = limits[0], limits[2], limits[3]
    if not fell:
        failures[k] += 1
    elif consecutive > 0:
        failures[k] = 0
    enough = failures[k] >= patience
    if enough:
        failures[k] = 0
    if adapt and fell and not enough:
        alpha[k] *= 2.0
    if adapt and enough and not fell:
        alpha[k] *= 0.5
    alpha[k] = min(alpha[k], cap)


@compiled
def stretch(
    theta: Array, v: Array, loss: Array, alpha: Array, failures: Array, streams: Array, root: Array, shares: Array,
    adapt: Array, limits: Array, epochs: int,
) -> int:  # fmt: skip
    """All epochs of all swarms, in place; how many losses were not finite. Swarm k draws from stream k mod streams."""
    swarms, numbers, particles = theta.shape
    factors = np.empty((_BLOCK, 2, numbers, particles))
    tried, new, miss = np.empty((numbers, particles)), np.empty(particles), np.empty(particles)
    lost = 0
    for stream in range(len(streams)):
        left = epochs
        while left > 0:
            some = min(left, _BLOCK)
            draw(streams[stream], factors, some)
            for k in range(stream, swarms, len(streams)):
                for epoch in range(some):
                    best = int(np.argmin(loss[k]))
                    propose(theta[k], v[k], best, factors[epoch], alpha[k], shares[:, k], limits[1], tried)
                    lost += squared_errors(tried, root, new, miss)
                    fell = accept(theta[k], loss[k], best, tried, new)
                    adapt_one(alpha, failures, k, fell, adapt[k], limits)
            left -= some
    return lost
