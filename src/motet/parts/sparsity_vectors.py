"""Sparsity vectors: how often a network's activations are zero on a client's examples, and noise that hides them.

Yang et al. 2022, "A Federated Model Personalisation Method Based on Sparsity Representation and
Clustering", section III: for each image, the share of zeros after a ReLU, channel by channel, averaged
over the first layers (join="mean") and over all images of the client, validation images included.

Differs from the paper: any network will do. An activation that is no ReLU counts as zero where a ReLU would
be; a gate of an LSTM where it is less than half open; in a dense layer, a channel is a unit with one position.
The common channels are drawn once, the same for all clients, from those that all the layers have. Layers can also
stand side by side (join="beside"): a channel of one layer has nothing to do with that of another by its number, and
their mean loses what tells groups apart (experiments/fedperc/grouping).
The noise is our own addition.
Knows one client's examples and tensors. Does not know what vectors are compared for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from motet.client import Batch, Data, Task
from motet.client.data import orders
from motet.parts.agents import normal, uniform
from motet.vec import Vec

DELTA = 1e-5  # the probability with which the guarantee of Gaussian noise may fail
Join = Literal["beside", "mean"]  # how layers become one vector
_SLICE = 128  # examples in one forward pass
_DRAW = 102  # seed of the common channels
_NOISE = 1 << 41  # salt of the noise, far from the salts of batch orders and of methods


# ---- from examples to a vector ----


@dataclass(frozen=True)
class Measure:
    """What of a network's activations becomes a vector."""

    layers: int = 3  # the first ones that have activations
    channels: int = 32  # at most so many, of all layers together or of each
    clip: float = 0.0  # largest distance of an example's vector from 1/2; 0 = no limit
    join: Join = "mean"


AS_PUBLISHED = Measure()


def mean_vector(task: Task, w: Vec, data: Data, measure: Measure = AS_PUBLISHED) -> Tensor:
    """The client's sparsity vector V: numbers in [0, 1]."""
    shares, real = of_examples(task, w, data, measure)
    return real @ shares / real.sum()


def second_moments(task: Task, w: Vec, data: Data, measure: Measure = AS_PUBLISHED) -> Tensor:
    """Second moments about 1/2 of the vectors of single examples, (numbers, numbers)."""
    shares, real = of_examples(task, w, data, measure)
    away = shares - 0.5
    return (away * real[:, None]).T @ away / real.sum()


def clipped(shares: Tensor, clip: float) -> Tensor:
    """Vectors whose distance from 1/2 is at most `clip`: longer ones are shortened; 0 = no limit."""
    if not clip:
        return shares
    away = shares - 0.5
    longest: Tensor = away.norm(dim=1, keepdim=True).clamp(min=clip)
    return 0.5 + away * (clip / longest)


def of_examples(task: Task, w: Vec, data: Data, measure: Measure) -> tuple[Tensor, Tensor]:
    """The vector of each example, (examples, numbers), and which examples are real, (examples,)."""
    w = task.weights_at_home(w, data)
    shares = []
    for x in (*torch.split(data.x, _SLICE), *torch.split(data.val.x, _SLICE)):
        if len(x):
            masks = task.zero_masks(w, x, measure.layers)
            shares.append(zero_shares(masks, measure.channels, measure.join))
    return clipped(torch.cat(shares), measure.clip), real_examples(data)


def real_examples(data: Data) -> Tensor:
    """1 for every real example of training and validation, whatever its weight; 0 for padding."""
    every: list[Batch] = [data.all, data.val]
    return torch.cat([(b.live > 0).to(b.live.dtype) for b in every])


def zero_shares(masks: list[Tensor], channels: int, join: Join = "mean") -> Tensor:
    """Shares of zeros, (examples, numbers): some channels of each layer side by side, or the mean over layers of
    channels that all of them have."""
    shares = [m.float().reshape(*m.shape[:2], -1).mean(-1) for m in masks]
    if join == "beside":
        return torch.cat([s[:, common_channels(s.shape[1], channels)] for s in shares], 1)
    chosen = common_channels(min(m.shape[1] for m in masks), channels)
    return torch.stack([s[:, chosen] for s in shares]).mean(0)


def common_channels(have: int, want: int) -> Tensor:
    """Up to `want` of 0, 1, …, have - 1: always the same ones."""
    return orders(torch.tensor(_DRAW), 0, torch.tensor(have), have)[:want].sort().values


# ---- noise that hides single examples ----


@dataclass(frozen=True)
class VectorNoise:
    """Noise that makes sparsity vectors and second moments differentially private in every single example.

    The number of examples counts as public. Draws are hashes of a seed: whoever knows the seed can subtract
    the noise, so in production the seed must be the client's secret.
    """

    epsilon: float  # 0 = no noise
    kind: Literal["gaussian", "laplace"] = "gaussian"
    clip: float = 0.0  # largest distance of an example's vector from 1/2; 0 = any vector in [0, 1]

    def on_vector(self, v: Tensor, n: Tensor, seed: Tensor) -> Tensor:
        """The mean of n examples' vectors, with noise."""
        return v + self.scale(n, len(v)) * draws(seed, len(v), self.kind) if self.epsilon else v

    def on_moments(self, m: Tensor, n: Tensor, seed: Tensor) -> Tensor:
        """The mean of n examples' second moments, with one draw for each pair of channels."""
        if not self.epsilon:
            return m
        width = len(m)
        half = draws(seed + 1, width * width, self.kind).reshape(width, width).triu()
        return m + self.scale(n, width, True) * (half + half.triu(1).T)

    def variance(self, n: Tensor, width: int) -> Tensor:
        """The variance that noise adds to a vector, in units of single examples: n times that of their mean."""
        if not self.epsilon:
            return torch.zeros(())
        return n * self.scale(n, width) ** 2 * (2 if self.kind == "laplace" else 1)

    def scale(self, n: Tensor | float, width: int, moments: bool = False) -> Tensor | float:
        """Standard deviation of Gaussian noise, or the scale of Laplace noise.

        Exchanging one example moves a mean of n vectors by at most 2 clip / n, and by sqrt(width) / n without
        clipping. It moves a mean of outer products by at most sqrt(2) clip² / n, reached when the two vectors
        are orthogonal. In the L1 norm, both are larger by the square root of how many numbers there are.

        >>> round(VectorNoise(1.0).scale(900, 32), 4)
        0.0234
        """
        clip = self.clip or math.sqrt(width) / 2
        moved = (math.sqrt(2) * clip**2 if moments else 2 * clip) / n
        if self.kind == "laplace":
            return moved * (width if moments else math.sqrt(width)) / self.epsilon
        return moved * gaussian(self.epsilon)


@cache
def gaussian(epsilon: float, delta: float = DELTA) -> float:
    """The standard deviation that makes a number of sensitivity 1 private, exactly and for any epsilon.

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
    """The probability that a standard normal number is below z."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _times_below(epsilon: float, z: float) -> float:
    """exp(epsilon) times that probability, without overflow."""
    chance = _below(z)
    return math.exp(min(epsilon + math.log(chance), 700.0)) if chance else 0.0


def draws(seed: Tensor, many: int, kind: str) -> Tensor:
    if kind == "gaussian":
        return normal(seed, _NOISE, many)
    u = uniform(seed, _NOISE, many) - 0.5  # in [-1/2, 1/2)
    return -u.sign() * (1 - 2 * u.abs()).clamp(min=2.0**-24).log()
