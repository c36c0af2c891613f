"""How far a server goes along the way from its model to the mean of clients' models: to the mean, or beyond it.

Knows models and weights of clients. Does not know where they come from, or what is rewarded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from motet.client.batchnorm import weights_of, with_statistics_of
from motet.vec import Vec

_TRIALS = 8  # lengths that a search compares
_EPS = 0.001  # FedExP's epsilon


def stepped(w: Vec, mean: Vec, s: float | Tensor) -> Vec:
    """w + s (mean - w); statistics of BatchNorm are those of the mean."""
    return with_statistics_of(w.map(lambda a, b: (a + s * (b - a)).to(a.dtype), mean), mean)


def searched(reward: Callable[[Tensor], Tensor], most: float) -> Tensor:
    """Of several lengths from 1 to `most`, in equal ratios, the one of the largest reward.

    >>> searched(lambda s: -(s - 3).abs(), 8.0).item()  # of 1, 1.35, 1.81, 2.44, 3.28, …
    3.281...
    """
    lengths: Tensor = most ** torch.linspace(0, 1, _TRIALS)
    return max(lengths.unbind(), key=lambda s: float(reward(s)))


def extrapolated(changes: Vec, p: Tensor) -> Tensor:
    """The length by which FedExP steps: the less clients' changes d_i agree, the longer.

    Jhunjhunwala et al. 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation", Algorithm 1:
    max(1, sum ||d_i||^2 / (2 M (||mean d||^2 + eps))). Differs: clients count by their weights p, not equally;
    statistics of BatchNorm are no changes of the model. The server then goes by the mean of this round's length and
    the last round's (following_server.py), where the paper averages the last two models.
    """
    p, changes = p.float(), weights_of(changes)
    own = sum(v.flatten(1).square().sum(1) for v in changes.values())  # ||d_i||^2, (clients,)
    mean = sum(torch.tensordot(p, v, dims=1).square().sum() for v in changes.values())
    return torch.as_tensor((p @ torch.as_tensor(own) / (2 * (mean + _EPS))).clamp(min=1))
