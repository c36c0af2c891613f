"""Listening to a network's activations while it predicts: nn.ReLU and its kin, and their functions.

What is written down is where an activation was given nothing positive. For a ReLU that is where it
gives zero; Tanh, GELU and the others are asked the same, which makes them comparable. Functions are
overheard and not layers, because residual blocks call them without a layer of their own.
Recurrent layers are not overheard: torch runs their gates out of sight.
Knows torch's functions. Does not know networks or weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_BENDS = {
    torch.relu, torch.relu_, torch.tanh, torch.sigmoid,
    functional.relu, functional.relu6, functional.hardtanh, functional.leaky_relu, functional.elu,
    functional.selu, functional.celu, functional.gelu, functional.silu, functional.mish, functional.softplus,
}  # fmt: skip


class _Enough(Exception):
    """The rest of the network need not run."""


class _Ear(TorchFunctionMode):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.heard = first, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BENDS:
            given = args[0] if args else kwargs["input"]
            self.heard.append(given <= 0)
            if len(self.heard) == self.first:
                raise _Enough
        return func(*args, **(kwargs or {}))


def overheard(run: Callable[[], Any], first: int) -> list[Tensor]:
    """Where the first activations that `run` calls are given nothing positive; fewer if it calls fewer.

    >>> overheard(lambda: torch.relu(torch.tensor([-1.0, 0.0, 2.0])), first=3)
    [tensor([ True,  True, False])]
    """
    ear = _Ear(first)
    try:
        with ear:
            run()
    except _Enough:
        pass
    return ear.heard
