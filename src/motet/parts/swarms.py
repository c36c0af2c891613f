"""Particle swarms: their initial state, their moves, and the adaptive step length alpha.

Between rounds the state of the swarms is a tree of tensors. Within a round `Swarms` is a working copy that NumPy
changes in place, which takes a fifth of the time. Several independent swarms are stacked along a first axis: one for
each class of a task, or restarts. Each has its own random generator, whose position is part of the state. So neither
other swarms nor the ends of rounds change what a swarm draws.

Shapes: theta and v (swarms, particles, numbers), loss (swarms, particles), alpha and failures (swarms,). `Swarms` also
takes arrays with more axes in front, which then share the draws of the swarms.

Knows particles and losses. Does not know who computes a loss, or what the numbers of a particle are weights of.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

State = dict[str, Any]
Array = np.ndarray[Any, Any]
OF_SWARMS = ("theta", "v", "loss", "alpha", "failures")  # parts of the state whose first axis is the swarms
LONGEST = 1e30  # longest step of a number: a rejected v is kept and may grow, and must not overflow
CHANGED = 1e-7  # a larger relative change of gbest's loss means that other clients have answered
ROUNDING = 1e-9  # a smaller relative gain may be an error of rounding
_BUFFER = 1 << 15  # numbers drawn at once


@dataclass(frozen=True)
class SwarmRule:
    """How swarms move. w1, w2 and adapt are one value for all swarms, or an array that broadcasts to alpha."""

    rule: Literal["fsi", "pso"] = "fsi"  # Federated Swarm Intelligence, or conventional PSO
    w1: Any = 0.0  # share of the previous velocity
    w2: Any = 0.3  # share of the attraction to gbest
    adapt: Any = True  # whether alpha adapts
    patience: int = 6  # failures after which alpha is halved
    consecutive: bool = False  # whether a success sets the number of failures back to 0
    alpha_cap: float = 0.0  # largest alpha; 0 = any
    bound: float = 0.0  # largest weight of a particle; 0 = any
    tries: int = 1  # candidates of each particle in an epoch, of which the best one counts

    @classmethod
    def of(cls, settings: Any) -> SwarmRule:
        """The rule of an object that has these fields among others."""
        return cls(**{f.name: getattr(settings, f.name) for f in fields(cls)})


def initial_state(
    seed: int, theta: Tensor, loss: Array, lost: int, source: Tensor, alpha: float, rule: str
) -> State:
    """Particles at theta with velocity 0; `lost` losses were not finite."""
    swarms = len(theta)
    s: State = {
        "theta": theta,
        "v": torch.zeros_like(theta),
        "loss": torch.from_numpy(loss),
        "alpha": torch.full((swarms,), alpha, dtype=torch.float64),
        "failures": torch.zeros(swarms, dtype=torch.int64),
        "source": source,  # (swarms, 4) positions of the random generators
        "epoch": torch.tensor(0),
        "seed": torch.tensor(seed),
        "excluded": torch.tensor(lost),  # losses so far that were not finite at some client
    }
    return s | {"x": theta} if rule == "pso" else s


def gbest(s: State) -> Tensor:
    """The best particle of each swarm, (swarms, 1, numbers)."""
    at = s["loss"].argmin(1)[:, None, None]
    best: Tensor = s["theta"].gather(1, at.expand(-1, 1, s["theta"].shape[2]))
    return best


def with_trail(s: State) -> State:
    """The state with one more record of each swarm's best particle and its loss, (records, swarms, numbers + 1)."""
    now = torch.cat([gbest(s)[:, 0], s["loss"].amin(1, keepdim=True)], 1)[None]
    return s | {"trail": torch.cat([s["trail"], now]) if "trail" in s else now}


class UniformDraws:
    """Uniform numbers in [0, 1) from a random generator for each swarm."""

    def __init__(self, source: Tensor) -> None:
        self.sources = [np.random.SFC64(0) for _ in source]
        for one, at in zip(self.sources, source.numpy().view(np.uint64), strict=True):
            one.state = {"bit_generator": "SFC64", "state": {"state": at}, "has_uint32": 0, "uinteger": 0}
        self.generators = [np.random.Generator(one) for one in self.sources]

    @classmethod
    def seeded(cls, seed: int, swarms: int) -> UniformDraws:
        """New generators, whose numbers depend on the seed and the swarm's index alone."""
        return cls(_positions([np.random.SFC64(np.random.SeedSequence([seed, i])) for i in range(swarms)]))

    def draw(self, *shape: int) -> Array:
        """(swarms, *shape)"""
        return self.fill(np.empty((len(self.generators), *shape)))

    def fill(self, out: Array) -> Array:
        for one, into in zip(self.generators, out, strict=True):
            one.random(out=into)
        return out

    def normal(self, *shape: int) -> Array:
        """Draws of the standard normal distribution, (swarms, *shape)."""
        return np.stack([one.standard_normal(shape) for one in self.generators])

    def positions(self) -> Tensor:
        """Where the generators are now, (swarms, 4): `UniformDraws(positions)` goes on from there."""
        return _positions(self.sources)


def _positions(sources: list[np.random.SFC64]) -> Tensor:
    found: list[Any] = [one.state["state"]["state"] for one in sources]
    return torch.from_numpy(np.stack(found).view(np.int64))


class Swarms:
    """A working copy of the swarms' state for the epochs of one round."""

    def __init__(self, s: State, rule: SwarmRule, epochs: int) -> None:
        self.before, self.rule, self.epochs_left = s, rule, epochs
        self.theta, self.v, self.loss, self.alpha, self.failures = (s[k].numpy().copy() for k in OF_SWARMS)
        self.x: Array = s["x"].numpy().copy() if rule.rule == "pso" else self.theta
        self.epoch, self.excluded = int(s["epoch"]), int(s["excluded"])
        self.index = np.indices(self.alpha.shape, sparse=True)  # of each swarm
        w3 = (1 - rule.w1 - rule.w2) * (2 if rule.rule == "fsi" else 1)  # R2 is drawn from half of its range
        shares = [np.broadcast_to(w, self.alpha.shape) for w in (rule.w1, rule.w2, w3)]
        self.shares = np.stack(shares)[..., None, None]  # (3, swarms, 1, 1)
        self.has_inertia = bool(np.any(rule.w1))
        self.lengths = self.alpha[..., None, None]  # a view: it adapts with alpha
        self.clients_changed = False  # whether losses were replaced in this round
        self._start_drawing()
        self._find_gbest()

    def _start_drawing(self) -> None:
        """Draws come in blocks of some epochs, which takes less time; never beyond the last epoch of the round."""
        self.draws = UniformDraws(self.before["source"])
        swarms, (candidates, numbers) = len(self.before["source"]), self.theta.shape[-2:]
        candidates *= self.rule.tries
        block = max(1, min(self.epochs_left, _BUFFER // (2 * swarms * candidates * numbers)))
        self.drawn, self.used = np.empty((swarms, block, 2, candidates, numbers)), block
        self.by_epoch = self.drawn.transpose(1, 2, 0, 3, 4)

    def _random_factors(self) -> tuple[Array, Array]:
        """R1 and R2 of this epoch, (swarms, candidates, numbers)."""
        if self.used == self.drawn.shape[1]:
            self.used = 0
            now = self.draws.fill(self.drawn[:, : self.epochs_left])
            if self.rule.rule == "fsi":
                now[:, :, 1] -= 0.5  # R2 is uniform in [-1, 1): here half of it, and its share is doubled
        self.used += 1
        r1, r2 = self.by_epoch[self.used - 1]
        return r1, r2

    def _find_gbest(self) -> None:
        at = *self.index, self.loss.argmin(-1)
        self.gbest, self.gbest_loss = self.theta[at][..., None, :], self.loss[at]

    def candidates(self) -> Array:
        """theta + v of all particles and, last in each swarm, gbest: (swarms, candidates + 1, numbers).

        v = alpha (w1 v + w2 R1 (gbest - theta) + (1 - w1 - w2) R2). In conventional PSO particles move from x, and
        theta, the best place that a particle has seen, replaces the mutation: (1 - w1 - w2) R2 (theta - x).
        """
        r1, r2 = self._random_factors()
        x, theta, v = self.x, self.theta, self.v
        if self.rule.tries > 1:
            x, theta, v = (a.repeat(self.rule.tries, -2) for a in (x, theta, v))
        w1, w2, w3 = self.shares * self.lengths
        self.step = self.gbest - x
        self.step *= r1
        self.step *= w2
        if self.has_inertia:
            v *= w1
            self.step += v
        self.step += r2 * (w3 if self.rule.rule == "fsi" else w3 * (theta - x))
        if self.alpha.max() > 1:  # otherwise a step is bounded by v and by the distance to gbest
            np.clip(self.step, -LONGEST, LONGEST, out=self.step)
        every = np.empty((*x.shape[:-2], x.shape[-2] + 1, x.shape[-1]))
        self.tried = every[..., :-1, :]
        np.add(x, self.step, out=self.tried)
        if self.rule.bound:
            np.clip(self.tried, -self.rule.bound, self.rule.bound, out=self.tried)
        every[..., -1:, :] = self.gbest
        return every

    def accept(self, new: Array) -> None:
        """End the epoch: particles whose candidate has a lower loss move there, and alpha adapts."""
        if self.rule.tries > 1:
            new = self._best_tries(new)
        self.v, before = self.step, self.gbest_loss
        at = (new < self.loss).nonzero()
        if len(at[0]):
            self._move(at, self.tried[at], new[at])
        adapt_alpha(self.alpha, self.failures, self.gbest_loss < before, self.rule)
        if self.rule.rule == "pso":
            self.x = self.tried.copy()
        self.epoch += 1
        self.epochs_left -= 1

    def _best_tries(self, new: Array) -> Array:
        """The losses of each particle's best candidate; the others are forgotten."""
        particles, tries = self.loss.shape[-1], self.rule.tries
        best = new.reshape(*self.loss.shape, tries).argmin(-1) + tries * np.arange(particles)
        at = *(i[..., None] for i in self.index), best
        self.step, self.tried = self.step[at], self.tried[at]
        chosen: Array = new[at]
        return chosen

    def _move(self, at: tuple[Array, ...], theta: Array, loss: Array) -> None:
        small = self.loss[at] - loss <= ROUNDING * np.abs(loss)
        if small.any():  # a particle that stays where it is may seem to gain by rounding: that is no success
            real = ~small | (theta != self.theta[at]).any(-1)
            at, theta, loss = tuple(i[real] for i in at), theta[real], loss[real]
        self.theta[at], self.loss[at] = theta, loss
        self._find_gbest()

    def others_answered(self, loss: Array) -> bool:
        """Whether gbest's loss has changed, so that losses of earlier epochs are those of other clients."""
        pairs = zip(loss.ravel().tolist(), self.gbest_loss.ravel().tolist(), strict=True)
        # There are few: faster than NumPy. inf - inf is nan: no change.
        return any(abs(now - then) > CHANGED * abs(then) for now, then in pairs)

    def replace_losses(self, loss: Array) -> None:
        """Losses of all particles at the clients that answer now."""
        self.loss, self.clients_changed = loss.copy(), True
        self._find_gbest()

    def advanced(self, theta: Array, v: Array, source: Array, epochs: int, lost: int) -> None:
        """Epochs that were computed elsewhere: particles, velocities and the generators' positions after them; loss,
        alpha and failures were changed in place."""
        self.theta, self.v = theta, v
        self.draws = UniformDraws(torch.from_numpy(source.view(np.int64)))
        self.used = self.drawn.shape[1]  # what was drawn ahead is used up
        self.epoch, self.epochs_left = self.epoch + epochs, self.epochs_left - epochs
        self.excluded += lost
        self.x = self.theta
        self._find_gbest()

    def state(self) -> State:
        keys = (*OF_SWARMS, "x") if self.rule.rule == "pso" else OF_SWARMS
        arrays = {k: torch.from_numpy(getattr(self, k)) for k in keys}
        counts = {"epoch": torch.tensor(self.epoch), "excluded": torch.tensor(self.excluded)}
        return self.before | arrays | counts | {"source": self.draws.positions()}


def adapt_alpha(alpha: Array, failures: Array, fell: Array, rule: SwarmRule) -> None:
    """In place: alpha doubles where gbest's loss fell, and halves after `patience` failures."""
    failures += ~fell
    if rule.consecutive:
        failures[fell] = 0
    enough = failures >= rule.patience
    failures[enough] = 0
    if rule.adapt is not True:
        fell, enough = fell & rule.adapt, enough & rule.adapt
    np.ldexp(alpha, np.subtract(fell, enough, dtype=np.int8), out=alpha)
    np.minimum(alpha, rule.alpha_cap or LONGEST, out=alpha)
