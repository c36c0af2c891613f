"""Clients described by how sparse a network's activations are on their data, and grouped by that.

Yang et al. 2022, "A Federated Model Personalisation Method Based on Sparsity Representation and
Clustering", section III: for each image, the share of zeros behind a ReLU, channel by channel, averaged
over the first layers and over all images of the client.

Differs from the paper: it takes any network. Behind an activation that is no ReLU, what counts is where a
ReLU would give zero; in a dense layer, a channel is a unit with one position. The common channels are one
fixed draw, the same for everyone, from those that all the layers have.
Knows tensors and rows of numbers. Does not know clients, or what groups are for.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motet.local import Data, Task
from motet.local.data import orders
from motet.parts.agents import normal
from motet.vec import Vec

Rows = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
DELTA = 1e-5  # the chance that the promise of epsilon does not hold
_SLICE = 128  # examples that a network sees at once
_DRAW = 102  # seed of the common channels
_NOISE = 1 << 41  # salt of draws, far from those of orders and of methods
_MOST = 10  # groups that are tried when silhouettes choose


# ---- from examples to a vector ----


def sketch(task: Task, w: Vec, data: Data, layers: int = 3, channels: int = 32) -> Tensor:
    """The client's sparsity vector: numbers in [0, 1], at most `channels` of them."""
    w = task.at_home(partial(task.predict, w), data).args[0]  # its own statistics, where they are local
    parts = zip(torch.split(data.x, _SLICE), torch.split(data.all.live, _SLICE), strict=True)
    sums = [live @ sparsity(task.silent(w, x, layers), channels) for x, live in parts]
    return torch.stack(sums).sum(0) / data.n


def sparsity(silent: list[Tensor], channels: int) -> Tensor:
    """Shares of silence (examples, channels), mean over layers, of common channels of all of them."""
    common = min(s.shape[1] for s in silent)
    chosen = common_channels(common, channels)
    shares = [s.float().reshape(*s.shape[:2], -1).mean(-1) for s in silent]
    return torch.stack([s[:, chosen] for s in shares]).mean(0)


def common_channels(have: int, want: int) -> Tensor:
    """Up to `want` of 0, 1, …, have - 1: always the same ones."""
    return orders(torch.tensor(_DRAW), 0, torch.tensor(have), have)[:want].sort().values


def noised(v: Tensor, n: Tensor, epsilon: float, seed: Tensor) -> Tensor:
    """The vector with Gaussian noise: (epsilon, delta)-differentially private in each single example.

    The proof of the formula wants epsilon up to 1. `n` counts as public. Draws are hashes of `seed`:
    whoever knows it can take the noise away, so in earnest it must be the client's secret.
    """
    return v + noise_scale(epsilon, n, len(v)) * normal(seed, _NOISE, len(v)) if epsilon else v


def noise_scale(epsilon: float, n: Tensor | float, width: int) -> Tensor | float:
    """Dwork and Roth 2014, Theorem A.1. Another example in place of one moves a mean over n by
    sqrt(width) / n at most.

    >>> round(noise_scale(1.0, 900, 32), 4)
    0.0305
    """
    return math.sqrt(2 * math.log(1.25 / DELTA)) * math.sqrt(width) / n / epsilon


# ---- from vectors to groups ----


def grouped(rows: Rows, how: str, k: int, threshold: float, seed: int) -> Labels:
    """The group of each row: by kmeans (k groups; 0 = by silhouettes), threshold, at random, or all in one."""
    if how == "kmeans":
        return kmeans(rows, k or best_k(rows, seed), seed)
    if how == "threshold":
        return linked(rows, threshold)
    return dealt(len(rows), k if how == "random" else 1, seed)


def kmeans(rows: Rows, k: int, seed: int) -> Labels:
    """Groups by k-means, the best of ten tries; fewer than k if there are fewer different rows."""
    from sklearn.cluster import KMeans

    k = min(k, len(np.unique(rows, axis=0)))
    return in_order(KMeans(k, n_init=10, random_state=seed % 2**32).fit(rows).labels_)


def linked(rows: Rows, threshold: float) -> Labels:
    """Groups in which everyone is within a distance of somebody (all of one chain are one group)."""
    near = distances(rows, rows) <= threshold
    for _ in range(max(len(rows) - 1, 1).bit_length()):
        near = near @ near  # reaches twice as far
    return in_order(near.argmax(1))  # the first that is reached


def dealt(many: int, k: int, seed: int) -> Labels:
    """Groups at random, of the same size up to one."""
    return in_order(np.random.default_rng(seed).permutation(many) % k)


def in_order(labels: Labels) -> Labels:
    """The same groups, numbered as they come.

    >>> in_order(np.array([7, 2, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    first = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([first[label] for label in labels.tolist()], np.int64)


def best_k(rows: Rows, seed: int) -> int:
    """The number of groups, up to ten, whose mean silhouette is largest; 1 where there is nothing to tell."""
    scores = {k: silhouette(rows, kmeans(rows, k, seed)) for k in range(2, min(_MOST, len(rows) - 1) + 1)}
    return max(scores, key=lambda k: scores[k]) if scores else 1


def silhouette(rows: Rows, labels: Labels) -> float:
    """How much nearer everyone is to its own group than to the next one, -1 to 1 (Rousseeuw 1987);
    -1 if there is one group only, or if all are alone."""
    from sklearn.metrics import silhouette_score

    many = len(set(labels.tolist()))
    return float(silhouette_score(rows, labels)) if 1 < many < len(rows) else -1.0


def agreement(a: Labels, b: Labels) -> float:
    """The adjusted Rand index of two groupings: 1 if they are the same, about 0 if one is at random."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a, b))


def centres(rows: Rows, labels: Labels) -> Rows:
    return np.stack([rows[labels == g].mean(0) for g in range(labels.max() + 1)])


def nearest(row: Rows, centres: Rows) -> int:
    return int(distances(row[None], centres)[0].argmin())


def distances(a: Rows, b: Rows) -> Rows:
    """Euclidean ones of all pairs, (rows of a, rows of b)."""
    found: Rows = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    return found
