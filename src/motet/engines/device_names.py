"""Devices by name: whether there is one, and how much memory it has left.

Knows torch's devices. Does not know engines or clients.
"""

from __future__ import annotations

import os

import torch

from motet.client.devices import CPU
from motet.errors import UsageError

NAMES = "cpu, cuda, cuda:1, mps or auto"


def device_named(name: str) -> torch.device:
    """The device, if this machine has it."""
    device = _known_to_torch(name)
    if device is None or (device.type == "cpu" and device != CPU):  # there is no cpu:0
        raise UsageError(f"engine.device is {name!r}; it must be {NAMES}\nhint: engine.device=cpu")
    if device == CPU:
        return CPU
    there = how_many(device.type)
    if there == 0:
        raise UsageError(
            f"engine.device is {name!r}, and torch {torch.__version__} finds no such device here.\n"
            f"hint: {_hint(device.type)}"
        )
    if (device.index or 0) >= there:
        known = ", ".join(f"{device.type}:{i}" for i in range(there))
        raise UsageError(f"engine.device is {name!r}, and this machine has {known}.\nhint: one of these")
    if (
        device.type == "cuda"
    ):  # before the first use of CUDA: products of matrices have the same bits in every run
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return device


def _known_to_torch(name: str) -> torch.device | None:
    try:
        return torch.device(name)
    except RuntimeError:
        return None


def how_many(kind: str) -> int:
    """How many devices of a kind torch can use."""
    try:
        module = torch.get_device_module(kind)
        if not module.is_available():
            return 0
        return int(module.device_count()) if hasattr(module, "device_count") else 1
    except (RuntimeError, AttributeError, AssertionError):
        return 0


def best_there() -> str:
    """The kind of the first accelerator that torch can use; cpu without any."""
    return next((kind for kind in ("cuda", "mps", "xpu") if how_many(kind)), "cpu")


def full_name(name: str) -> str:
    """Its kind, and what its maker calls it, for records."""
    device = torch.device(name)
    if device.type == "cuda":
        return f"{device.type} ({torch.cuda.get_device_name(device)})"
    return device.type


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where it does not say."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    module = torch.get_device_module(device.type) if device != CPU else None
    asked = getattr(module, "mem_get_info", None)
    return int(asked(device)[0]) if asked else None


def total_memory(device: torch.device) -> int | None:
    """All bytes of a device, used or not; None where it does not say."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    module = torch.get_device_module(device.type) if device != CPU else None
    asked = getattr(module, "mem_get_info", None)
    return int(asked(device)[1]) if asked else None


def _hint(kind: str) -> str:
    other = best_there()
    if other != "cpu":
        return f"engine.device={other} is here, or engine.device=cpu"
    if kind == "cuda" and torch.version.cuda is None:
        return "engine.device=cpu, or a torch with CUDA (pytorch.org) on a machine with an NVIDIA GPU"
    return "engine.device=cpu"
