"""PFLlib's network "DNN", 784-100-10, with the weights that torch draws after torch.manual_seed.

Where PFLlib divides it into a body and a head (FedAvg, FedPer, FedRep), the logarithm of a softmax that stands behind
its last layer stays with the body: the head then sees log-softmax of the 100 features. `split = true` is that network.
Knows layers. Does not know data or methods.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from motet.nets.layers import chain


def dnn(
    shape: tuple[int, ...], outputs: int, *, torch_seed: int = 0, hidden: int = 100, split: bool = False
) -> nn.Module:
    """One hidden layer with ReLU."""
    torch.manual_seed(torch_seed)
    first, head = nn.Linear(math.prod(shape), hidden), nn.Linear(hidden, outputs)
    more: dict[str, nn.Module] = {"log": nn.LogSoftmax(-1)} if split else {}
    return chain(flat=nn.Flatten(), fc1=first, relu=nn.ReLU(), **more, head=head)
