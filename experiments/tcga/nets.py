"""FLamby's model of Fed-TCGA-BRCA: a linear layer with the weights that torch draws after torch.manual_seed.

Knows layers. Does not know data or methods.
"""

from __future__ import annotations

import math

import torch
from torch import nn


class Linear(nn.Module):
    """One linear layer."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(x.flatten(1))
        return found


def linear(shape: tuple[int, ...], outputs: int, *, torch_seed: int = 42) -> nn.Module:
    """The risk as a linear function."""
    torch.manual_seed(torch_seed)
    return Linear(math.prod(shape), outputs)
