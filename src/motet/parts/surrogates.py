"""A quadratic surrogate: the server fits a quadratic function to the losses so far, and tries its minimum.

With p numbers a quadratic has (p + 1)(p + 2) / 2 coefficients. Squared errors of a linear network are such a function:
as soon as there are as many losses, the surrogate is the loss itself, and its minimum is least squares. For others
it is fitted again and again around the best point. Coefficients are found by least squares with a ridge that
generalised cross-validation chooses: none for exact losses, more for noisy ones.

Knows points and losses. Does not know who computes a loss, or what the numbers are weights of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from motet.parts.searches import PointSearch
from motet.parts.swarms import Array

MOST = 40  # numbers: 861 coefficients, whose fit takes about a second
_KEPT = 3  # times as many losses are remembered as there are coefficients
_KEPT_NOISY = 10  # and if losses are noisy
_SHORTEST = 1e-9  # of the first step length: points that lie closer tell nothing
_RIDGES = 10.0 ** np.arange(-30, 0)  # shares of the largest eigenvalue, besides 0


def coefficients(numbers: int) -> int:
    """Of a quadratic function of so many numbers, which is how many losses tell all of it.

    >>> coefficients(14)
    120
    """
    return (numbers + 1) * (numbers + 2) // 2


@dataclass(frozen=True)
class Quadratic:
    """f(x) = value + slope'(x - centre) + (x - centre)' curvature (x - centre) / 2."""

    centre: Array
    value: float
    slope: Array
    curvature: Array
    noise: float = 0.0  # standard deviation of what it does not explain

    def steps(self, dampings: Array) -> Array:
        """From the centre: to the minimum, and shorter ways to it; (1 + dampings, numbers).

        Directions are scaled first, so that numbers of different units count alike. Along a direction whose curvature
        is negative, the way is as long as if it were positive.
        """
        scale, values, axes = self._scaled()
        along = axes.T @ (self.slope / scale)
        damped = np.concatenate([[0.0], dampings * values.max()])[:, None] + values
        steps: Array = -((along / damped) @ axes.T) / scale
        return steps

    def spread(self, z: Array, rise: float) -> Array:
        """Normal draws (many, numbers) as steps that raise a bowl of this curvature by `rise` on average."""
        scale, values, axes = self._scaled()
        steps: Array = (z * np.sqrt(2 * rise / (z.shape[1] * values))) @ axes.T / scale
        return steps

    def _scaled(self) -> tuple[Array, Array, Array]:
        diagonal = np.abs(np.diag(self.curvature))
        scale = np.sqrt(np.maximum(diagonal, diagonal.max() * 1e-24 + 1e-300))
        values, axes = np.linalg.eigh(self.curvature / np.outer(scale, scale))
        values = np.abs(values)
        return scale, np.maximum(values, values.max() * 1e-13), axes


def fitted(x: Array, loss: Array) -> Quadratic:
    """The quadratic function through points (many, numbers) by least squares; those with low losses count more.

    >>> at = np.random.default_rng(0).normal(size=(8, 2))
    >>> q = fitted(at, 3 + at[:, 0] ** 2 + at[:, 0] * at[:, 1] + 2 * at[:, 1] ** 2)
    >>> np.round(q.curvature, 9).tolist(), np.abs(q.centre + q.steps(np.empty(0))[0]).max() < 1e-9
    ([[2.0, 1.0], [1.0, 4.0]], np.True_)
    """
    best, n = int(loss.argmin()), x.shape[1]
    gaps = loss - loss[best]
    z = x - x[best]
    scale = np.maximum(np.sqrt(np.square(z).mean(0)), 1e-300)
    z /= scale
    weights = np.sqrt(1 / (1 + gaps / usual_gap(gaps, n)))
    i, j = np.triu_indices(n)
    terms = np.hstack([np.ones((len(z), 1)), z, z[:, i] * z[:, j]]) * weights[:, None]
    found, noise = ridge(terms, gaps * weights)
    upper = np.zeros((n, n))
    upper[i, j] = found[n + 1 :]
    curvature = (upper + upper.T) / np.outer(scale, scale)
    return Quadratic(x[best], float(loss[best] + found[0]), found[1 : n + 1] / scale, curvature, noise)


def usual_gap(gaps: Array, numbers: int) -> float:
    """How far losses are above the best one, among as many of the lowest as there are coefficients."""
    return max(float(np.sort(gaps)[min(len(gaps), coefficients(numbers)) - 1]), 1e-300)


def ridge(a: Array, y: Array) -> tuple[Array, float]:
    """Coefficients of y on the columns of a, with the ridge that generalised cross-validation prefers; and the
    standard deviation of what they do not explain."""
    long = np.maximum(np.linalg.norm(a, axis=0), 1e-300)
    u, s, v = np.linalg.svd(a / long, full_matrices=False)
    seen = u.T @ y
    outside = max(float(y @ y - seen @ seen), 0.0)
    floor = np.finfo(float).eps ** 2 * float(y @ y)  # what rounding leaves
    best, chosen, noise = np.inf, 0.0, 0.0
    for share in (0.0, *_RIDGES):
        kept = s**2 / (s**2 + share * s[0] ** 2 + 1e-300)
        missed = outside + float(np.square((1 - kept) * seen).sum()) + floor
        free = max(len(y) - float(kept.sum()), 0.5)
        if missed / free**2 < best:
            best, chosen, noise = missed / free**2, share, missed / free
    safe = s > s[0] * 1e-15
    factors = np.where(safe, s / (s**2 + chosen * s[0] ** 2 + 1e-300), 0.0)
    found: Array = (v.T @ (factors * seen)) / long
    return found, float(np.sqrt(noise))


class Surrogate(PointSearch):
    """The search that goes to the minimum of a fitted quadratic function."""

    own = ("seen",)
    seen: Array  # (searches, losses so far, numbers + 1): points and, last, their losses

    def first(self) -> dict[str, Array]:
        return {"seen": np.concatenate([self.theta, self.loss[..., None]], 2)}

    def sampled(self) -> Array:
        """Points around the start until there are enough losses; then the way to the minimum, and points around it.
        The minimum itself is the mean."""
        z = self.draws.normal(self.many - 1, self.numbers)
        if self.seen.shape[1] < coefficients(self.numbers):
            points: Array = self.mean[:, None] + self.alpha[:, None, None] * z
            return points
        return np.stack([self._around(i, z[i]) for i in range(len(z))])

    def _around(self, i: int, z: Array) -> Array:
        x, loss = self.seen[i, :, :-1], self.seen[i, :, -1]
        finite = np.isfinite(loss)
        found = fitted(x[finite], loss[finite])
        way = (self.many - 1) // 4
        steps = found.steps(10.0 ** np.linspace(-6, 0, way))
        self.mean[i] = found.centre + steps[0]
        gap = usual_gap(loss[finite] - loss[finite].min(), self.numbers)
        near = found.spread(z[way:], max(gap / 4, 2 * found.noise))
        near *= max(1.0, _SHORTEST * float(self.alpha[i]) / max(float(np.abs(near).max()), 1e-300))
        return np.concatenate([found.centre + steps[1:], self.mean[i] + near])

    def learn(self, points: Array, loss: Array) -> None:
        new = np.concatenate([points, loss[..., None]], 2)
        kept = (_KEPT_NOISY if self.noisy else _KEPT) * coefficients(self.numbers)
        self.seen = np.concatenate([self.seen, new], 1)[:, -kept:]

    def replace_losses(self, loss: Array) -> None:
        """Earlier losses are those of other clients: the search begins anew from the best point."""
        super().replace_losses(loss)
        self.mean = self.theta[:, 0].copy()
        self.seen = np.concatenate([self.theta, self.loss[..., None]], 2)
