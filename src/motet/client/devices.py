"""Where tensors are: trees go from the host to the device that a visit computes on, and back.

A visit on a device runs inside `working_on`. There, functions that make tensors (`torch.zeros`, `arange`, `tensor`)
make them on the device, so that verbs, losses and networks need no word about devices. On the CPU nothing is in
between: no mode is entered, and trees are passed on as they are.
Knows tensors and devices. Does not know engines, nor which device is chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

CPU = torch.device("cpu")
_GIVEN = (torch.as_tensor, torch.asarray)  # they may be given a tensor, which stays where it is
_FACTORIES = {
    torch.arange, torch.empty, torch.empty_strided, torch.eye, torch.full, torch.linspace, torch.logspace,
    torch.ones, torch.rand, torch.randint, torch.randn, torch.randperm, torch.scalar_tensor, torch.tensor,
    torch.tril_indices, torch.triu_indices, torch.zeros, *_GIVEN,
}  # fmt: skip
_thread = threading.local()


def here() -> torch.device:
    """The device that this thread's visit computes on; the CPU outside of visits."""
    return getattr(_thread, "device", CPU)


@contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """Inside, this thread makes tensors on the device.

    >>> with working_on(torch.device("meta")):
    ...     torch.zeros(2).device.type, torch.as_tensor([1.0]).device.type
    ('meta', 'meta')
    """
    before, _thread.device = here(), device
    try:
        with _FactoriesOn(device):
            yield
    finally:
        _thread.device = before


def still_working() -> AbstractContextManager[None]:
    """As `working_on`, for code of a visit that torch calls outside of its modes; nothing on the CPU."""
    return nullcontext() if here() == CPU else working_on(here())


class _FactoriesOn(TorchFunctionMode):
    """torch's own `with torch.device(…)` also moves tensors that `as_tensor` is given, which would hide a tensor in the
    wrong place, and keeps a variable that threads share."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and kwargs.get("device") is None and not _has_place(func, args):
            kwargs = {**kwargs, "device": self.device}
        return func(*args, **kwargs)


def _has_place(func: Any, args: tuple[Any, ...]) -> bool:
    return func in _GIVEN and bool(args) and isinstance(args[0], Tensor)


def moved(tree: Any, device: torch.device) -> Any:
    """The tree with all its tensors on a device; the tree itself if they are there already."""
    values, spec = pytree.tree_flatten(tree)
    away = [v for v in values if isinstance(v, Tensor) and v.device != device]
    if not away:
        return tree
    there = {id(v): v.to(device) for v in away}  # a tensor that occurs twice is moved once
    return pytree.tree_unflatten([there.get(id(v), v) for v in values], spec)


def widest_float(device: torch.device) -> torch.dtype:
    """Double precision, where the device has it: Apple's (mps) has not."""
    return torch.float32 if device.type == "mps" else torch.float64
