"""Swarms of weight vectors: how they begin, move and learn from losses.

Between rounds swarms are a tree of tensors. Within a round a `Flock` is a working copy that NumPy changes in
place, which takes a fifth of the time. Several swarms that know nothing of each other go side by side (a first
axis): the classes of a task, settings to be compared, restarts. Classes and restarts have a random source each,
whose place is part of the state: neither neighbours nor where rounds end change what a swarm draws. The first swarm
of every setting draws the same, and so does the second: as if each setting were a run of its own with that seed.

Knows particles and losses. Does not know who says what a loss is, or what the numbers are weights of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Swarm = dict[str, Any]  # theta, v (swarms, particles, numbers); loss (swarms, particles); others (swarms,)
Array = np.ndarray[Any, Any]
_FAR = 1e30  # the longest stride: a rejected v is kept and may grow, and what overflows is no number any more
_MOVED = 1e-7  # relative change of the best particle's loss which says that other clients have answered
_ROUNDING = 1e-9  # relative gain that rounding might feign
_AHEAD = 1 << 15  # numbers drawn at once


@dataclass(frozen=True)
class SwarmRule:
    """How swarms move; what has a number for each swarm may also be one number for all of them."""

    name: Literal["fsi", "pso"] = "fsi"  # Federated Swarm Intelligence, or conventional PSO
    w1: Any = 0.0  # share of the speed before, by swarm
    w2: Any = 0.3  # share of the pull to the best particle, by swarm
    adapt: Any = True  # whether alpha learns, by swarm
    failures: int = 6  # epochs without a better best after which alpha is halved
    consecutive: bool = False  # whether a success forgets the failures before it
    cap: float = 0.0  # largest alpha; 0 = any
    tries: int = 1  # places that a particle tries in an epoch, to take the best

    def of(self, at: Array, many: int) -> SwarmRule:
        """That of some of many swarms."""
        w1, w2 = (np.broadcast_to(w, many)[at] for w in (self.w1, self.w2))
        adapt = self.adapt is True or np.broadcast_to(self.adapt, many)[at]
        return replace(self, w1=w1, w2=w2, adapt=adapt)


def born(seed: int, theta: Tensor, source: Tensor, alpha: Any, rule: SwarmRule) -> Swarm:
    """Swarms at rest, whose losses are not known yet; `alpha` is a number, or one for each."""
    many = len(theta)
    s: Swarm = {
        "theta": theta,
        "v": torch.zeros_like(theta),
        "loss": torch.full(theta.shape[:2], torch.inf, dtype=torch.float64),
        "alpha": torch.as_tensor(alpha, dtype=torch.float64).expand(many).clone(),
        "failures": torch.zeros(many, dtype=torch.int64),
        "source": source,  # (swarms of a setting, 4) where their draws have got to
        "epoch": torch.tensor(0),
        "seed": torch.tensor(seed),
        "excluded": torch.tensor(0),  # losses so far that some client could not compute
    }
    return s | {"x": theta} if rule.name == "pso" else s


# ---- draws ----


class Dice:
    """Uniform numbers in [0, 1), a source for each swarm of a setting."""

    def __init__(self, source: Tensor) -> None:
        self.sources = [np.random.SFC64(0) for _ in source]
        for one, at in zip(self.sources, source.numpy().view(np.uint64), strict=True):
            one.state = {
                "bit_generator": "SFC64",
                "state": {"state": at},
                "has_uint32": 0,
                "uinteger": 0,
            }
        self.draws = [np.random.Generator(one) for one in self.sources]

    @classmethod
    def of(cls, seed: int, swarms: int) -> Dice:
        """Fresh sources, whose numbers depend on the seed and the swarm's place."""
        fresh = [np.random.SFC64(np.random.SeedSequence([seed, i])) for i in range(swarms)]
        return cls(_places(fresh))

    def roll(self, *shape: int) -> Array:
        """(swarms, *shape), each swarm's numbers in the order of its source."""
        return self.fill(np.empty((len(self.draws), *shape)))

    def fill(self, out: Array) -> Array:
        for one, into in zip(self.draws, out, strict=True):
            one.random(out=into)
        return out

    def places(self) -> Tensor:
        return _places(self.sources)


def _places(sources: list[np.random.SFC64]) -> Tensor:
    found: list[Any] = [one.state["state"]["state"] for one in sources]
    return torch.from_numpy(np.stack(found).view(np.int64))


# ---- moves ----


class Flock:
    """Swarms in motion, for some epochs: a working copy of their state."""

    def __init__(self, s: Swarm, rule: SwarmRule, epochs: int) -> None:
        self.before, self.left = s, epochs
        self.dice, self.each = Dice(s["source"]), len(s["source"])
        self.at, self.resting = moving(s)
        self.theta, self.v, self.loss, self.alpha, self.failures = (
            s[k].numpy()[self.at] for k in ("theta", "v", "loss", "alpha", "failures")
        )
        self.x: Array = s["x"].numpy()[self.at] if rule.name == "pso" else self.theta
        everyone, particles, numbers = s["theta"].shape
        tries = particles * rule.tries
        ahead = max(1, min(epochs, _AHEAD // (2 * self.each * tries * numbers)))
        self.drawn, self.used = np.empty((self.each, ahead, 2, tries, numbers)), ahead
        self.by_epoch = self.drawn.transpose(1, 2, 0, 3, 4)
        self.epoch, self.excluded = int(s["epoch"]), int(s["excluded"])
        self.rule = rule = rule.of(self.at, everyone)
        shares = (rule.w1, rule.w2, (1 - rule.w1 - rule.w2) * (2 if rule.name == "fsi" else 1))
        self.shares = np.stack([self.by_setting(w)[:, :, None, None] for w in shares])
        self.lengths = self.by_setting(self.alpha)[:, :, None, None]  # the same numbers, which learn in place
        self.inert = bool(rule.w1.any())
        self.every = np.arange(len(self.theta))
        self.others = False  # whether other clients have answered
        self.rank()

    def rank(self) -> None:
        """Who is best in each swarm, and how good."""
        at = self.every, self.loss.argmin(1)
        self.gbest, self.least = self.theta[at][:, None], self.loss[at]

    def draw(self) -> tuple[Array, Array]:
        """R1 and R2 of this epoch, (swarms of a setting, tries of all particles, numbers)."""
        if self.used == self.drawn.shape[1]:
            self.used = 0
            now = self.dice.fill(self.drawn[:, : self.left])  # never further than the last epoch of the round
            if self.rule.name == "fsi":
                now[:, :, 1] -= 0.5  # a mutation goes either way, and its share is twice as large
        self.used += 1
        r1, r2 = self.by_epoch[self.used - 1]
        return r1, r2

    def move(self) -> Array:
        """Where particles try to go and, last of each swarm, its best one: (swarms, tries + 1, numbers).

        v = alpha (w1 v + w2 R1 (gbest - theta) + (1 - w1 - w2) R2). In conventional PSO a pull to the best
        place that the particle itself has seen replaces the mutation R2.
        """
        r1, r2 = self.draw()
        many = self.rule.tries
        x, theta, v = self.x, self.theta, self.v
        if many > 1:
            x, theta, v = (a.repeat(many, 1) for a in (x, theta, v))
        w1, w2, w3 = self.shares * self.lengths
        self.step = self.gbest - x
        step = self.by_setting(self.step)
        step *= r1
        step *= w2
        if self.inert:
            v = self.by_setting(v)
            v *= w1
            step += v
        step += r2 * (w3 if self.rule.name == "fsi" else w3 * self.by_setting(theta - x))
        if self.alpha.max() > 1:  # else a step is no longer than the longest before, or the way to the best
            np.clip(self.step, -_FAR, _FAR, out=self.step)
        letter = np.empty((len(x), x.shape[1] + 1, x.shape[2]))
        self.tried = letter[:, :-1]
        np.add(x, self.step, out=self.tried)
        letter[:, -1:] = self.gbest
        return letter

    def by_setting(self, a: Array) -> Array:
        """(settings, swarms of a setting, ...)"""
        return a.reshape(-1, self.each, *a.shape[1:])

    def learn(self, new: Array) -> None:
        """End the epoch: the places that were tried cost `new` (swarms, tries of all particles)."""
        if self.rule.tries > 1:
            new = self.choose(new)
        self.v, before = self.step, self.least
        at = (new < self.loss).nonzero()
        if len(at[0]):
            self.single_thread(at, self.tried[at], new[at])
        adapted(self.alpha, self.failures, self.least < before, self.rule)
        if self.rule.name == "pso":
            self.x = self.tried.copy()
        self.epoch += 1
        self.left -= 1

    def choose(self, new: Array) -> Array:
        """Of each particle's tries only the best one counts."""
        swarms, particles = self.loss.shape
        best = new.reshape(swarms, particles, -1).argmin(2) + self.rule.tries * np.arange(particles)
        at = self.every[:, None], best
        self.step, self.tried = self.step[at], self.tried[at]
        chosen: Array = new[at]
        return chosen

    def single_thread(self, at: tuple[Array, ...], there: Array, fresh: Array) -> None:
        """Some particles take their steps."""
        doubt = self.loss[at] - fresh <= _ROUNDING * np.abs(fresh)
        if doubt.any():  # one that stood still has the same loss but for rounding, which is no success
            fine = ~doubt | (there != self.theta[at]).any(1)
            at, there, fresh = (at[0][fine], at[1][fine]), there[fine], fresh[fine]
        self.theta[at], self.loss[at] = there, fresh
        self.rank()

    def others_answered(self, witness: Array) -> bool:
        """Whether the best particles' losses (swarms,) are not what they were, so that old ones do not compare."""
        pairs = zip(witness.tolist(), self.least.tolist(), strict=True)  # few: NumPy would take longer
        return any(abs(now - then) > _MOVED * abs(then) for now, then in pairs)  # both infinite: as it was

    def relearn(self, old: Array) -> None:
        """Where particles are costs something else now."""
        self.loss, self.others = old.copy(), True
        self.rank()

    def relearn_resting(self, old: Array) -> None:
        loss = _put(self.before["loss"], self.resting, torch.from_numpy(old.copy()))
        self.before = self.before | {"loss": loss}

    def state(self) -> Swarm:
        s = dict(self.before)
        for k in ("theta", "v", "loss", "alpha", "failures", *(["x"] if self.rule.name == "pso" else [])):
            s[k] = _put(s[k], self.at, torch.from_numpy(getattr(self, k)))
        counts = {"epoch": torch.tensor(self.epoch), "excluded": torch.tensor(self.excluded)}
        return s | counts | {"source": self.dice.places()}


def moving(s: Swarm) -> tuple[Array, Array]:
    """Which swarms go on, and which are at rest: alpha has been halved to nothing in all swarms of their setting."""
    rests = (s["alpha"].numpy() == 0).reshape(-1, len(s["source"])).all(1).repeat(len(s["source"]))
    rests &= not rests.all()  # somebody must ask
    return (~rests).nonzero()[0], rests.nonzero()[0]


def _put(whole: Tensor, at: Array, part: Tensor) -> Tensor:
    return part if len(part) == len(whole) else whole.index_copy(0, torch.from_numpy(at), part)


def adapted(alpha: Array, failures: Array, fell: Array, rule: SwarmRule) -> None:
    """In place: alpha doubles where the best loss fell, and halves after some failures."""
    failures += ~fell
    if rule.consecutive:
        failures[fell] = 0
    enough = failures >= rule.failures
    failures[enough] = 0
    if rule.adapt is not True:
        fell, enough = fell & rule.adapt, enough & rule.adapt
    np.ldexp(alpha, np.subtract(fell, enough, dtype=np.int8), out=alpha)
    np.minimum(alpha, rule.cap or _FAR, out=alpha)


def leaders(s: Swarm) -> Tensor:
    """gbest of each swarm, (swarms, 1, numbers)."""
    at = s["loss"].argmin(1)[:, None, None]
    best: Tensor = s["theta"].gather(1, at.expand(-1, 1, s["theta"].shape[2]))
    return best
