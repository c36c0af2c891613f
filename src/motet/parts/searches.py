"""Searches that sample points around a mean: CMA-ES and natural evolution strategies.

They take the place of a particle swarm: a message holds candidates, the answer their losses, and only the order of the
losses counts. CMA-ES learns the shape of the loss as a covariance matrix (for some hundred numbers); natural evolution
strategies learn one length for each number (for thousands). The last candidate of a message is the mean itself.
Written here, and not taken from a library, because the state must be a tree of tensors that a run can be continued
from to the bit; the libraries (cma, cmaes) keep theirs in objects.

Shapes: several independent searches are stacked along a first axis (searches, candidates, numbers).
Knows candidates and losses. Does not know who computes a loss, or what the numbers are weights of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from motet.parts.swarms import CHANGED, Array, State, UniformDraws

_LEAST, _MOST = 1e-150, 1e150  # of a step length


def initial_search(seed: int, mean: Tensor, loss: Array, lost: int, source: Tensor, alpha: float) -> State:
    """A search that begins at the mean, (searches, 1, numbers), and has asked for its loss alone."""
    return {
        "theta": mean,  # the best point so far
        "loss": torch.from_numpy(loss),
        "mean": mean[:, 0],
        "alpha": torch.full((len(mean),), alpha, dtype=torch.float64),  # step length
        "source": source,  # (searches, 4) positions of the random generators
        "epoch": torch.tensor(0),
        "seed": torch.tensor(seed),
        "excluded": torch.tensor(lost),
    }


class PointSearch:
    """A working copy of a state for the epochs of one round. Subclasses say how points are drawn and learned from."""

    own: ClassVar[tuple[str, ...]] = ()  # arrays of the state that a subclass adds

    def __init__(
        self, s: State, candidates: int, epochs: int, bound: float = 0.0, noisy: bool = False
    ) -> None:
        self.before, self.many, self.epochs_left, self.bound, self.noisy = s, candidates, epochs, bound, noisy
        self.theta, self.loss, self.mean, self.alpha = (
            s[k].numpy().copy() for k in ("theta", "loss", "mean", "alpha")
        )
        self.epoch, self.excluded = int(s["epoch"]), int(s["excluded"])
        self.draws = UniformDraws(s["source"])
        first = {} if self.own and self.own[0] in s else self.first()
        for k in self.own:
            setattr(self, k, first[k] if first else s[k].numpy().copy())

    @property
    def numbers(self) -> int:
        return int(self.mean.shape[1])

    def first(self) -> dict[str, Array]:
        """The subclass' own arrays before the first epoch."""
        return {}

    def sampled(self) -> Array:
        """(searches, candidates - 1, numbers)"""
        raise NotImplementedError

    def learn(self, points: Array, loss: Array) -> None:
        """From all candidates and their losses."""
        raise NotImplementedError

    def candidates(self) -> Array:
        """Points to try, the mean, and last the best point so far: (searches, candidates + 1, numbers)."""
        self.tried = np.concatenate([self.sampled(), self.mean[:, None]], 1)
        if self.bound:
            np.clip(self.tried, -self.bound, self.bound, out=self.tried)
        return np.concatenate([self.tried, self.theta], 1)

    def others_answered(self, loss: Array) -> bool:
        """Whether the best point's loss has changed: other clients have answered."""
        with np.errstate(invalid="ignore"):
            return bool((np.abs(loss - self.loss[:, 0]) > CHANGED * np.abs(self.loss[:, 0])).any())

    def replace_losses(self, loss: Array) -> None:
        """The best point's loss at the clients that answer now."""
        self.loss = loss.copy()

    def accept(self, new: Array) -> None:
        """End the epoch: remember the best point, and learn. Under noise the mean of an epoch is a better guess than
        the point with the luckiest loss."""
        for i, loss in enumerate(new):
            at = -1 if self.noisy else int(loss.argmin())
            if loss[at] < self.loss[i, 0] or self.noisy:
                self.theta[i, 0], self.loss[i, 0] = self.tried[i, at], loss[at]
        self.learn(self.tried, new)
        self.epoch += 1
        self.epochs_left -= 1

    def state(self) -> State:
        arrays = {
            k: torch.from_numpy(getattr(self, k)) for k in ("theta", "loss", "mean", "alpha", *self.own)
        }
        counts = {"epoch": torch.tensor(self.epoch), "excluded": torch.tensor(self.excluded)}
        return self.before | arrays | counts | {"source": self.draws.positions()}


class NaturalStrategy(PointSearch):
    """Separable natural evolution strategies: T. Schaul, T. Glasmachers, J. Schmidhuber, "High dimensions and heavy
    tails for natural evolution strategies" (2011), with the utilities of Wierstra et al. (2014)."""

    own = ("lengths",)
    lengths: Array  # (searches, numbers)

    def first(self) -> dict[str, Array]:
        return {"lengths": np.repeat(self.alpha[:, None], self.numbers, 1)}

    def sampled(self) -> Array:
        self.z = self.draws.normal(self.many - 1, self.numbers)
        points: Array = self.mean[:, None] + self.lengths[:, None] * self.z
        return points

    def learn(self, points: Array, loss: Array) -> None:
        order = loss[:, :-1].argsort(1, kind="stable")
        z = np.take_along_axis(self.z, order[..., None], 1)  # best first
        u = utilities(self.many - 1)
        rate = (3 + np.log(self.numbers)) / (5 * np.sqrt(self.numbers))
        self.mean += self.lengths * np.einsum("i,sij->sj", u, z)
        self.lengths *= np.exp(rate / 2 * np.einsum("i,sij->sj", u, z**2 - 1))
        np.clip(self.lengths, _LEAST, _MOST, out=self.lengths)
        self.alpha = np.sqrt(np.mean(self.lengths**2, 1))


def utilities(many: int) -> Array:
    """How much each of the samples counts, best first; they sum to 0.

    >>> utilities(4).round(3).tolist()
    [0.48, 0.02, -0.25, -0.25]
    """
    u = np.maximum(0, np.log(many / 2 + 1) - np.log(np.arange(1, many + 1)))
    found: Array = u / u.sum() - 1 / many
    return found


class CovarianceAdaptation(PointSearch):
    """CMA-ES with negative weights: N. Hansen, "The CMA evolution strategy: a tutorial" (2016), Appendix A."""

    own = ("covariance", "axes", "scales", "path", "step_path")
    covariance: Array  # (searches, numbers, numbers)
    axes: Array  # its eigenvectors, and
    scales: Array  # roots of its eigenvalues (searches, numbers), as of the last decomposition
    path: Array  # evolution path of the covariance (searches, numbers)
    step_path: Array  # and of the step length

    def first(self) -> dict[str, Array]:
        searches, n = self.mean.shape
        one, zero = np.tile(np.eye(n), (searches, 1, 1)), np.zeros((searches, n))
        return {
            "covariance": one, "axes": one.copy(), "scales": zero + 1, "path": zero.copy(), "step_path": zero,
        }  # fmt: skip

    @cached_property
    def rates(self) -> Rates:
        return Rates.of(self.many - 1, self.numbers)

    def sampled(self) -> Array:
        self.z = self.draws.normal(self.many - 1, self.numbers)
        self.y = (self.z * self.scales[:, None]) @ self.axes.swapaxes(1, 2)
        points: Array = self.mean[:, None] + self.alpha[:, None, None] * self.y
        return points

    def learn(self, points: Array, loss: Array) -> None:
        r, n = self.rates, self.numbers
        order = loss[:, :-1].argsort(1, kind="stable")[..., None]
        y, z = (np.take_along_axis(a, order, 1) for a in (self.y, self.z))  # best first
        step = np.einsum("i,sij->sj", r.weights[: r.parents], y[:, : r.parents])
        white = np.einsum("i,sij->sj", r.weights[: r.parents], z[:, : r.parents])
        self.mean += self.alpha[:, None] * step
        self.step_path *= 1 - r.c_step
        self.step_path += np.sqrt(r.c_step * (2 - r.c_step) * r.mass) * np.einsum(
            "sij,sj->si", self.axes, white
        )
        length = np.linalg.norm(self.step_path, axis=1)
        usual = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))  # of a normal vector
        grown = np.sqrt(1 - (1 - r.c_step) ** (2 * (self.epoch + 1)))
        short = (length / grown < (1.4 + 2 / (n + 1)) * usual).astype(float)
        self.path *= 1 - r.c_path
        self.path += short[:, None] * np.sqrt(r.c_path * (2 - r.c_path) * r.mass) * step
        self._learn_covariance(y, z, short)
        self.alpha *= np.exp(np.minimum(1, r.c_step / r.damping * (length / usual - 1)))
        np.clip(self.alpha, _LEAST, _MOST, out=self.alpha)

    def _learn_covariance(self, y: Array, z: Array, short: Array) -> None:
        r, n = self.rates, self.numbers
        square = np.maximum((z**2).sum(-1), 1e-300)
        w = np.where(r.weights >= 0, r.weights, r.weights * n / square)  # (searches, samples)
        stays = 1 - r.c_one - r.c_many * r.weights.sum() + r.c_one * (1 - short) * r.c_path * (2 - r.c_path)
        self.covariance *= stays[:, None, None]
        self.covariance += r.c_one * self.path[:, :, None] * self.path[:, None]
        self.covariance += r.c_many * (y.swapaxes(1, 2) * w[:, None]) @ y
        if (self.epoch + 1) % r.gap == 0:
            self.covariance = (self.covariance + self.covariance.swapaxes(1, 2)) / 2
            values, self.axes = np.linalg.eigh(self.covariance)
            self.scales = np.sqrt(np.maximum(values, values[:, -1:] * 1e-20))


@dataclass(frozen=True)
class Rates:
    """Weights and learning rates of CMA-ES, as the tutorial has them; its symbols in the comments."""

    parents: int  # mu
    weights: Array  # w, of all samples, best first
    mass: float  # mu_eff
    c_step: float  # c_sigma
    damping: float  # d_sigma
    c_path: float  # c_c
    c_one: float  # c_1
    c_many: float  # c_mu
    gap: int  # epochs between two decompositions

    @classmethod
    def of(cls, samples: int, n: int) -> Rates:
        raw = np.log((samples + 1) / 2) - np.log(np.arange(1, samples + 1))
        parents = samples // 2
        plus, minus = np.maximum(raw, 0), np.minimum(raw, 0)
        mass, mass_minus = ((a.sum() ** 2 / (a**2).sum()) for a in (raw[:parents], raw[parents:]))
        c_one = 2 / ((n + 1.3) ** 2 + mass)
        c_many = min(1 - c_one, 2 * (0.25 + mass + 1 / mass - 2) / ((n + 2) ** 2 + mass))
        most = (1 + c_one / c_many, 1 + 2 * mass_minus / (mass + 2), (1 - c_one - c_many) / (n * c_many))
        weights = plus / plus[:parents].sum() + minus / max(-minus.sum(), 1e-300) * min(most)
        c_step = (mass + 2) / (n + mass + 5)
        damping = 1 + 2 * max(0.0, np.sqrt((mass - 1) / (n + 1)) - 1) + c_step
        c_path = (4 + mass / n) / (n + 4 + 2 * mass / n)
        gap = max(1, int(1 / (10 * n * (c_one + c_many))))
        return cls(parents, weights, float(mass), c_step, damping, c_path, c_one, c_many, gap)
