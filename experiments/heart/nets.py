"""Networks of published results on Fed-Heart-Disease, with one output for two classes.

A network with one output z gives the scores (0, z): their cross-entropy is the usual binary one. Weights can be those
that torch draws after torch.manual_seed, as published code has them.
Knows layers. Does not know data or methods.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class TwoScores(nn.Module):
    """The scores (0, z) of two classes."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(self.body(x))
        return torch.cat([torch.zeros_like(z), z], -1)


def logistic(shape: tuple[int, ...], outputs: int, *, torch_seed: int = -1) -> nn.Module:
    """Logistic regression; -1: weights follow from the run's seed."""
    if torch_seed >= 0:
        torch.manual_seed(torch_seed)
    return TwoScores(nn.Flatten(), math.prod(shape))


def one_hidden_layer(shape: tuple[int, ...], outputs: int, *, hidden: int = 10) -> nn.Module:
    """A hidden layer with ReLU below the one output."""
    return TwoScores(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU()), hidden)
