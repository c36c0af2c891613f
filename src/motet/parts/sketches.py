"""Clients described by how sparse a network's activations are on their data: vectors that hide the data.

Yang et al. 2022, "A Federated Model Personalisation Method Based on Sparsity Representation and
Clustering", section III: for each image, the share of zeros behind a ReLU, channel by channel, averaged
over the first layers and over all images of the client, those for validation among them.

Differs from the paper: it takes any network. Behind an activation that is no ReLU, what counts is where a
ReLU would give zero; a gate of an LSTM counts where it is less than half open; in a dense layer, a channel is
a unit with one position. The common channels are one fixed draw, the same for everyone, from those that all
the layers have.
Knows one client's examples and tensors. Does not know what vectors are compared for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from motet.client import Batch, Data, Task
from motet.client.data import orders
from motet.parts.agents import normal, uniform
from motet.vec import Vec

DELTA = 1e-5  # the chance that the promise of Gaussian noise does not hold
_SLICE = 128  # examples that a network sees at once
_DRAW = 102  # seed of the common channels
_NOISE = 1 << 41  # salt of draws, far from those of orders and of methods


# ---- from examples to a vector ----


def sketch(task: Task, w: Vec, data: Data, layers: int = 3, channels: int = 32, reach: float = 0.0) -> Tensor:
    """The client's sparsity vector: numbers in [0, 1], at most `channels` of them."""
    shares, live = of_examples(task, w, data, layers, channels)
    return live @ within(shares, reach) / live.sum()


def spread(task: Task, w: Vec, data: Data, layers: int = 3, channels: int = 32, reach: float = 0.0) -> Tensor:
    """Second moments about 1/2 of its examples' vectors, (channels, channels)."""
    shares, live = of_examples(task, w, data, layers, channels)
    away = within(shares, reach) - 0.5
    return (away * live[:, None]).T @ away / live.sum()


def within(shares: Tensor, reach: float) -> Tensor:
    """Vectors no farther from 1/2 than `reach`: the longer ones are shortened; 0 = any."""
    if not reach:
        return shares
    away = shares - 0.5
    longest: Tensor = away.norm(dim=1, keepdim=True).clamp(min=reach)
    return 0.5 + away * (reach / longest)


def of_examples(task: Task, w: Vec, data: Data, layers: int, channels: int) -> tuple[Tensor, Tensor]:
    """(examples, channels) the vector of each, and which of them are real."""
    w = task.at_home(partial(task.predict, w), data).args[0]  # its own statistics, where they are local
    shares = []
    for x in (*torch.split(data.x, _SLICE), *torch.split(data.val.x, _SLICE)):
        if len(x):
            shares.append(sparsity(task.silent(w, x, layers), channels))
    return torch.cat(shares), live(data)


def live(data: Data) -> Tensor:
    """1 for every real example of training and validation, 0 for padding."""
    every: list[Batch] = [data.all, data.val]
    return torch.cat([b.live for b in every])


def sparsity(silent: list[Tensor], channels: int) -> Tensor:
    """Shares of silence (examples, channels), mean over layers, of common channels of all of them."""
    common = min(s.shape[1] for s in silent)
    chosen = common_channels(common, channels)
    shares = [s.float().reshape(*s.shape[:2], -1).mean(-1) for s in silent]
    return torch.stack([s[:, chosen] for s in shares]).mean(0)


def common_channels(have: int, want: int) -> Tensor:
    """Up to `want` of 0, 1, …, have - 1: always the same ones."""
    return orders(torch.tensor(_DRAW), 0, torch.tensor(have), have)[:want].sort().values


# ---- noise that hides single examples ----


@dataclass(frozen=True)
class Hiding:
    """Noise that makes what is said of examples differentially private in each single one.

    How many examples there are counts as public. Draws are hashes of a seed: whoever knows it can take the
    noise away, so in earnest it must be the client's secret.
    """

    epsilon: float  # 0 = no noise
    kind: Literal["gaussian", "laplace"] = "gaussian"
    reach: float = 0.0  # the longest way from 1/2 of an example's vector; 0 = as far as numbers in [0, 1] go

    def sketch(self, v: Tensor, n: Tensor, seed: Tensor) -> Tensor:
        return v + self.scale(n, len(v)) * draws(seed, len(v), self.kind) if self.epsilon else v

    def spread(self, m: Tensor, n: Tensor, seed: Tensor) -> Tensor:
        """Second moments, with one draw for each pair of channels."""
        if not self.epsilon:
            return m
        wide = len(m)
        half = draws(seed + 1, wide * wide, self.kind).reshape(wide, wide).triu()
        return m + self.scale(n, wide, True) * (half + half.triu(1).T)

    def variance(self, n: Tensor, wide: int) -> Tensor:
        """What noise adds to the variance of a sketch, in the unit of single examples, of which it is the mean."""
        if not self.epsilon:
            return torch.zeros(())
        return n * self.scale(n, wide) ** 2 * (2 if self.kind == "laplace" else 1)

    def scale(self, n: Tensor | float, wide: int, moments: bool = False) -> Tensor | float:
        """Standard deviation of Gaussian noise, or the scale of Laplace's.

        Another example in place of one moves a mean of n vectors by 2 reach / n at most, sqrt(wide) / n if
        any number in [0, 1] may come; matrices of products, which are at right angles at most, by
        sqrt(2) reach² / n. In absolute values it is the square root of how many numbers there are as much.

        >>> round(Hiding(1.0).scale(900, 32), 4)
        0.0234
        """
        reach = self.reach or math.sqrt(wide) / 2
        moved = (math.sqrt(2) * reach**2 if moments else 2 * reach) / n
        if self.kind == "laplace":
            return moved * (wide if moments else math.sqrt(wide)) / self.epsilon
        return moved * gaussian(self.epsilon)


@cache
def gaussian(epsilon: float, delta: float = DELTA) -> float:
    """The noise that makes a number of sensitivity 1 private, exactly and for any epsilon.

    Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8.
    """
    least, most = 1e-6, 1e6
    for _ in range(200):
        sigma = math.sqrt(least * most)
        a, b = 1 / (2 * sigma), epsilon * sigma
        lost = _below(a - b) - _times_below(epsilon, -a - b)
        least, most = (sigma, most) if lost > delta else (least, sigma)
    return most


def _below(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def _times_below(epsilon: float, z: float) -> float:
    """exp(epsilon) times the chance of being below z, without overflow."""
    chance = _below(z)
    return math.exp(min(epsilon + math.log(chance), 700.0)) if chance else 0.0


def draws(seed: Tensor, many: int, kind: str) -> Tensor:
    if kind == "gaussian":
        return normal(seed, _NOISE, many)
    far = uniform(seed, _NOISE, many) - 0.5  # in [-1/2, 1/2)
    return -far.sign() * (1 - 2 * far.abs()).clamp(min=2.0**-24).log()
