"""Normalisation layers by name, and the policies for BatchNorm's statistics in a federation.

Knows channels and layers. Does not know clients: a net with BatchNorm only names, in its attribute
`statistics`, the policy that training follows:

averaged   clients train with the statistics of each batch; running statistics are averaged like weights
local      as averaged, but running statistics stay with the client
shared     statistics are measured once, when the net is built, and stay fixed, the same for all clients
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from motet.nets.layers import Shape, unknown

NORMS = ("group", "batch")
STATISTICS = ("averaged", "local", "shared")
Norm = Callable[[int], nn.Module]  # from a number of channels to a layer
_PIXELS = 2**16  # of the noise on which statistics are measured: 64 images of 32 x 32


def norm_of(norm: str, groups: int) -> Norm:
    """A function that makes GroupNorm, BatchNorm or (none) identity layers."""
    if norm == "group":
        return lambda channels: nn.GroupNorm(groups, channels)
    return nn.BatchNorm2d if norm == "batch" else lambda channels: nn.Identity()


def wrong_norm(
    norm: str, groups: int, statistics: str, widths: Sequence[int], known: Sequence[str] = NORMS
) -> list[str]:
    """Complaints about the options; `widths` are the channels that GroupNorm would have to divide."""
    wrong = unknown("norm", norm, known) + unknown("statistics", statistics, STATISTICS)
    most = math.gcd(*widths)
    if norm == "group" and (groups < 1 or most % groups):
        wrong += [f"has groups {groups}; expected a divisor of {most}.\nhint: groups=2, or norm=batch"]
    return wrong


def declare(net: nn.Module, norm: str, statistics: str) -> None:
    """Set the policy of a net with BatchNorm; a net without it has none."""
    if norm == "batch":
        net.statistics = statistics  # type: ignore[assignment]


@torch.no_grad()
def measure(net: nn.Module, shape: Shape) -> None:
    """Set all running statistics by noise of mean 0 and variance 1, as normalised inputs have."""
    layers = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    before, training = [m.momentum for m in layers], net.training
    for m in layers:
        m.momentum = 1.0  # keep the statistics of this batch alone
    many = max(2, _PIXELS // math.prod(shape[1:]))
    net.train()(torch.randn(many, *shape))  # each layer gets what the layers before it have normalised
    for m, momentum in zip(layers, before, strict=True):
        m.momentum = momentum
    net.train(training)
