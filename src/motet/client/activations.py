"""Listening to a network's activations while it predicts: nn.ReLU and its kin, and their functions.

What is written down is where an activation was given nothing positive. For a ReLU that is where it
gives zero; Tanh, GELU and the others are asked the same, which makes them comparable. Functions are
overheard and not layers, because residual blocks call them without a layer of their own.
What torch runs out of sight, like the gates of a recurrent layer, must be said by the layer itself (`say`).
Knows torch's functions. Does not know networks or weights.
"""

from __future__ import annotations

import threading
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


_thread = threading.local()


class _Enough(Exception):
    """The rest of the network need not run."""


class _Ear(TorchFunctionMode):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.heard = first, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BENDS:
            self.hear(args[0] if args else kwargs["input"])
        return func(*args, **(kwargs or {}))

    def hear(self, given: Tensor) -> None:
        self.heard.append(given <= 0)
        if len(self.heard) == self.first:
            raise _Enough


def say(given: Tensor) -> None:
    """An activation that nobody could overhear, (examples, channels, ...) as it is given to it."""
    if (ear := getattr(_thread, "ear", None)) is not None:
        ear.hear(given)


def is_heard() -> bool:
    return getattr(_thread, "ear", None) is not None


def overheard(run: Callable[[], Any], first: int) -> list[Tensor]:
    """Where the first activations that `run` calls are given nothing positive; fewer if it calls fewer.

    >>> overheard(lambda: torch.relu(torch.tensor([-1.0, 0.0, 2.0])), first=3)
    [tensor([ True,  True, False])]
    """
    ear = _thread.ear = _Ear(first)
    try:
        with ear:
            run()
    except _Enough:
        pass
    finally:
        _thread.ear = None
    return ear.heard
