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
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from motet.local import Batch, Data, Task
from motet.local.data import orders
from motet.parts.agents import normal, uniform
from motet.vec import Vec

Noise = Literal["gaussian", "laplace"]
DELTA = 1e-5  # the chance that the promise of Gaussian noise does not hold
_SLICE = 128  # examples that a network sees at once
_DRAW = 102  # seed of the common channels
_NOISE = 1 << 41  # salt of draws, far from those of orders and of methods


# ---- from examples to a vector ----


def sketch(task: Task, w: Vec, data: Data, layers: int = 3, channels: int = 32) -> Tensor:
    """The client's sparsity vector: numbers in [0, 1], at most `channels` of them."""
    shares, live = of_examples(task, w, data, layers, channels)
    return live @ shares / live.sum()


def spread(task: Task, w: Vec, data: Data, layers: int = 3, channels: int = 32) -> Tensor:
    """Second moments about 1/2 of its examples' vectors, (channels, channels)."""
    shares, live = of_examples(task, w, data, layers, channels)
    away = shares - 0.5
    return (away * live[:, None]).T @ away / live.sum()


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


def noised(v: Tensor, n: Tensor, epsilon: float, seed: Tensor, kind: Noise = "gaussian") -> Tensor:
    """A sketch that is differentially private in each single example; as it is if epsilon is 0.

    `n` counts as public. Draws are hashes of `seed`: whoever knows it can take the noise away, so in
    earnest it must be the client's secret.
    """
    return v + noise_scale(epsilon, n, len(v), kind) * draws(seed, len(v), kind) if epsilon else v


def noised_spread(m: Tensor, n: Tensor, epsilon: float, seed: Tensor, kind: Noise = "gaussian") -> Tensor:
    """The same for second moments, with one draw for each pair of channels, and with the variance that noise
    gives to sketches, in the unit of single examples: directions that drown in noise do not count."""
    if not epsilon:
        return m
    drowned = n * noise_scale(epsilon, n, len(m), kind) ** 2 * (2 if kind == "laplace" else 1)
    row, column = torch.triu_indices(len(m), len(m))
    scale = noise_scale(epsilon, n, len(m), kind, moments=True)
    half = torch.zeros_like(m).index_put((row, column), scale * draws(seed + 1, len(row), kind))
    return m + half + half.T - torch.diag(half.diagonal()) + drowned * torch.eye(len(m))


def noise_scale(
    epsilon: float, n: Tensor | float, width: int, kind: Noise = "gaussian", moments: bool = False
) -> Tensor | float:
    """Standard deviation of Gaussian noise, or the scale of Laplace's.

    Another example in place of one moves a mean over n vectors in [0, 1] by sqrt(width) / n at most, by
    width / n in the sum of absolute values. A vector minus 1/2 is at most sqrt(width) / 2 long; two such
    matrices of products are at most sqrt(2) width / 4 apart, and width² / 2 in absolute values.

    >>> round(noise_scale(1.0, 900, 32), 4)
    0.0234
    """
    if kind == "laplace":
        return (width**2 / 2 if moments else width) / n / epsilon
    return gaussian(epsilon) * (math.sqrt(2) * width / 4 if moments else math.sqrt(width)) / n


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


def draws(seed: Tensor, many: int, kind: Noise) -> Tensor:
    if kind == "gaussian":
        return normal(seed, _NOISE, many)
    far = uniform(seed, _NOISE, many) - 0.5  # in [-1/2, 1/2)
    return -far.sign() * (1 - 2 * far.abs()).clamp(min=2.0**-24).log()
