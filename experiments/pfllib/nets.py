"""PFLlib's network "DNN", 784-100-10, with the weights that torch draws after torch.manual_seed.

Knows layers. Does not know data or methods.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from motet.nets.layers import chain


def dnn(shape: tuple[int, ...], outputs: int, *, torch_seed: int = 0, hidden: int = 100) -> nn.Module:
    """One hidden layer with ReLU."""
    torch.manual_seed(torch_seed)
    first = nn.Linear(math.prod(shape), hidden)
    return chain(flat=nn.Flatten(), fc1=first, relu=nn.ReLU(), head=nn.Linear(hidden, outputs))
