"""Client-level differential privacy: updates are cut, and their sum gets Gaussian noise.

McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models": each client's update is cut to a
length S, all clients count alike, and the sum gets noise of z S. A trusted server adds it, or each of m clients adds
its share, z S / sqrt(m), so that with masked sums nobody sees less noise; then all of them must stay and be honest.
With a quantile, the length follows the updates (Andrew et al. 2021, "Differentially Private Learning with Adaptive
Clipping", Algorithm 1): clients say whether their update was short enough, the server learns their noised share.
In a simulation draws follow from the run's seed: they are for studies and protect nobody. At a site they come from
the system's generator, and m is the fewest replies that a masked sum may have: more replies only add more noise.
Knows updates of clients, one by one and their mean. Does not know methods or engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from motet.client.chance import SystemChance
from motet.client.data import seed_of
from motet.client.private_steps import normal
from motet.core import MethodUnfit, Tree
from motet.guard.pairs.chain import Leaving, float_leaves, origin, reply_of, update_of, with_floats
from motet.guard.pairs.clip import norm

_RATE = 0.2  # by which the length adapts (eta of the paper)
_OF_COUNT = (
    0.05  # noise of the count of short updates, as a share of the cohort (sigma_b of the paper: m / 20)
)


@dataclass
class ClientNoise:
    """A guard at clients, `leave` and `arrive`, and what a server does with the mean, `released`."""

    clip: float  # length S of updates, now
    multiplier: float  # z of the whole release
    cohort: float  # replies that are expected in a mean
    by: Literal["server", "clients"] = "server"
    scaled: bool = False  # whether a sum is divided by `cohort` and not by its replies: Poisson draws
    quantile: float = 0.0  # share of updates that should be short enough; 0: the length stays
    system: bool = False  # whether clients draw by the system's generator, and not by the seed
    short: list[bool] = field(default_factory=list)  # whether updates of this ask were
    name = "client_noise"

    @property
    def of_updates(self) -> float:
        """z of the updates: a little more than that of the release, where a count is released too."""
        if not self.quantile:
            return self.multiplier
        of_count = 2 * _OF_COUNT * self.cohort
        if of_count <= self.multiplier:
            raise MethodUnfit(
                f"privacy.clip_quantile is set, and with {self.cohort:g} clients in a round its count would need more "
                f"noise than it can have (multiplier {self.multiplier:.3g})\n"
                "hint: privacy.clip_quantile=0, or a larger train.cohort"
            )
        return float((self.multiplier**-2 - of_count**-2) ** -0.5)

    def leave(self, reply: Tree, about: Leaving, kept: Tree) -> tuple[Tree, Tree]:
        floats, places, values, _ = float_leaves(reply)
        if len(places) < len(values):
            raise MethodUnfit(
                "a reply holds something else than floating numbers, to which no noise can be added\n"
                "hint: another method, or privacy.level=example"
            )
        start = origin(reply, about.sent)
        update = update_of(floats, start)
        length = norm(update)
        self.short.append(length <= self.clip)
        share = min(1.0, self.clip / max(length, 1e-300))
        whole = [u * share for u in update]
        if self.by == "clients":
            spread = self.of_updates * self.clip / math.sqrt(self.cohort)
            whole = noised(whole, spread, None if self.system else about.seed)
        return with_floats(reply, reply_of(whole, floats, start)), ()

    def arrive(self, came: Tree, sent: Tree) -> Tree:
        return came

    def released(self, mean: Tree, sent: Tree, replies: float, seed: int) -> Tree:
        """What the server uses of a mean: its update, by the expected number of replies, with noise. `sent` is ()
        where clients were sent different things."""
        floats = float_leaves(mean)[0]
        if not floats:
            return mean
        start = origin(mean, sent)
        update = update_of(floats, start)
        count = self.cohort if self.scaled else replies
        if self.scaled:
            update = [u * (replies / count) for u in update]
        if self.by == "server":
            update = noised(update, self.of_updates * self.clip / count, seed)
        self.adapt(count, seed)
        return with_floats(mean, reply_of(update, floats, start))

    def adapt(self, count: float, seed: int) -> None:
        """The length of the next round, from the noised share of updates that were short enough."""
        if self.quantile:
            draw = float(normal(torch.tensor(seed_of(seed, "count")), 0, 1)[0])
            # short ones count +1/2 and long ones -1/2, so that one client more or less moves the sum by 1/2
            share = 0.5 + (sum(self.short) - len(self.short) / 2 + _OF_COUNT * self.cohort * draw) / count
            self.clip *= math.exp(-_RATE * (share - self.quantile))
        self.short.clear()


def noised(parts: list[Tensor], spread: float, seed: int | None) -> list[Tensor]:
    """The numbers with Gaussian noise of this deviation; without a seed it is of the system's generator."""
    sizes = [len(p) for p in parts]
    if seed is None:
        drawn = SystemChance().normal((sum(sizes),))
    else:
        drawn = normal(torch.tensor(seed_of(seed, "client noise")), 0, sum(sizes))
    draws: Any = drawn.split(sizes)
    return [p + spread * d.to(p.device) for p, d in zip(parts, draws, strict=True)]
