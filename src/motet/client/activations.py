"""Records where a network's activations would be zero under a ReLU, while the network predicts.

What is recorded is where an activation function gets an input that is not positive. A ReLU returns zero there;
Tanh, GELU and the others are recorded by the same rule, which makes them comparable. Calls of functions are
recorded and not layers, because residual blocks call torch.relu_ without a layer of their own. What torch
computes inside one call, such as the gates of an LSTM, must be recorded by the layer itself (`record`).
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

_ACTIVATIONS = {
    torch.relu, torch.relu_, torch.tanh, torch.sigmoid,
    functional.relu, functional.relu6, functional.hardtanh, functional.leaky_relu, functional.elu,
    functional.selu, functional.celu, functional.gelu, functional.silu, functional.mish, functional.softplus,
}  # fmt: skip


_thread = threading.local()


class _Enough(Exception):
    """The rest of the network need not run."""


class _Recorder(TorchFunctionMode):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.masks = first, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ACTIVATIONS:
            self.record(args[0] if args else kwargs["input"])
        return func(*args, **(kwargs or {}))

    def record(self, given: Tensor) -> None:
        self.masks.append(given <= 0)
        if len(self.masks) == self.first:
            raise _Enough


def record(given: Tensor) -> None:
    """For layers that torch runs in one call: the input of one of their activations, (examples, channels, ...)."""
    if (recorder := getattr(_thread, "recorder", None)) is not None:
        recorder.record(given)


def is_recording() -> bool:
    return getattr(_thread, "recorder", None) is not None


def zero_masks(run: Callable[[], Any], first: int) -> list[Tensor]:
    """True where the first activations that `run` calls get no positive input; fewer if it calls fewer.

    >>> zero_masks(lambda: torch.relu(torch.tensor([-1.0, 0.0, 2.0])), first=3)
    [tensor([ True,  True, False])]
    """
    recorder = _thread.recorder = _Recorder(first)
    try:
        with recorder:
            run()
    except _Enough:
        pass
    finally:
        _thread.recorder = None
    return recorder.masks
