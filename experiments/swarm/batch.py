"""Many settings of the swarm side by side in one run: Table 1 and Figures 7 and 8.

Each setting is what a run of `method=swarm` with it alone would be, with the same draws: the first swarm of every
setting draws the same numbers, and so does the second. Swarms of one setting stand together along the first axis.
A setting has converged when alpha has been halved to 0 in all its swarms: it cannot move any more, and its losses are
no longer asked for.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from motet.core import Fuse, MethodUnfit, Positive, Share, Talk, Tree, Turn
from motet.methods.swarm import Swarm
from motet.parts.swarms import OF_SWARMS, Array, SwarmRule, Swarms


class SwarmBatch(Swarm):
    """`Swarm` with lists of settings; an empty list means the one value for all."""

    w1s: tuple[Share, ...] = ()  # w1 of each setting
    w2s: tuple[Share, ...] = ()  # w2 of each setting
    alphas: tuple[Positive, ...] = ()  # initial alpha of each setting
    adapts: tuple[bool, ...] = ()  # adapt of each setting

    @property
    def lists(self) -> dict[str, Array]:
        """The values of each setting."""
        given = {"w1": self.w1s, "w2": self.w2s, "alpha": self.alphas, "adapt": self.adapts}
        many = max(1, *map(len, given.values()))
        return {k: np.array(v or [getattr(self, k)] * many) for k, v in given.items()}

    def check(self) -> None:
        sizes = {len(v) for v in (self.w1s, self.w2s, self.alphas, self.adapts) if v}
        if len(sizes) > 1:
            raise MethodUnfit(
                f"lists of settings have {sorted(sizes)} values.\nhint: the same number of each"
            )
        if self.per_class:
            raise MethodUnfit(f"loss {self.loss!r} has a swarm for each class.\nhint: method=swarm")
        for w1, w2 in zip(self.lists["w1"], self.lists["w2"], strict=True):
            Swarm.check(replace(self, w1=float(w1), w2=float(w2)))

    def start(self, turn: Turn) -> Tree | Talk:
        s = yield from super().start(turn)
        alpha = self.lists["alpha"]
        some = {k: s[k].repeat(len(alpha), *[1] * (s[k].ndim - 1)) for k in self.stacked}
        alphas = {"alpha": torch.from_numpy(alpha.repeat(self.swarms).astype(float))}
        rest = {k: v for k, v in s.items() if k != "trail"}
        return self.with_best(rest | some | alphas)

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        moving, converged = settings_by_state(s, self.swarms)
        part = {k: s[k].unflatten(0, (-1, self.swarms))[moving] for k in self.stacked}
        swarms: Swarms = Swarms(s | part, self.rule_of(moving), self.stretch)
        yield from self.optimise(swarms, turn)
        after = swarms.state()
        for k in self.stacked:
            after[k] = put(s[k], after[k], moving, self.swarms)
        if swarms.clients_changed and len(converged):
            theta = s["theta"].unflatten(0, (-1, self.swarms))[converged]
            loss, _ = yield from self.ask(theta.numpy(), swarms.epoch, turn)
            after["loss"] = put(after["loss"], torch.from_numpy(loss), converged, self.swarms)
        return self.with_best(after)

    def ask(
        self, theta: Array, epoch: int, turn: Turn, fuse: Fuse | None = None
    ) -> Generator[Any, Any, tuple[Array, int]]:
        """The same with settings in front: theta (settings, swarms, particles, numbers)."""
        loss, lost = yield from super().ask(theta.reshape(-1, *theta.shape[-2:]), epoch, turn, fuse)
        return loss.reshape(theta.shape[:-1]) if loss.size else loss, lost

    @property
    def stacked(self) -> tuple[str, ...]:
        return (*OF_SWARMS, "x") if self.rule == "pso" else OF_SWARMS

    def rule_of(self, settings: Array) -> SwarmRule:
        values = {k: v[settings, None] for k, v in self.lists.items() if k != "alpha"}  # (settings, 1)
        return replace(SwarmRule.of(self), **values | ({"adapt": True} if values["adapt"].all() else {}))


def settings_by_state(s: Tree, swarms: int) -> tuple[Array, Array]:
    """Which settings move, and which have converged; if all have, all count as moving, since a round must ask."""
    converged = (s["alpha"].numpy() == 0).reshape(-1, swarms).all(1)
    converged &= not converged.all()
    return (~converged).nonzero()[0], converged.nonzero()[0]


def put(whole: torch.Tensor, part: torch.Tensor, settings: Array, swarms: int) -> torch.Tensor:
    """`whole` (all swarms, ...) with the swarms of some settings replaced by `part` (settings, swarms, ...)."""
    at = (settings[:, None] * swarms + np.arange(swarms)).ravel()
    return whole.index_copy(0, torch.from_numpy(at), part.flatten(0, 1))
