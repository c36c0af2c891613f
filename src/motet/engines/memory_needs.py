"""How much memory clients take: rows, copies of the weights, and on a device what a step remembers of a batch.

On the CPU the sizes of chunks follow from rows and weights alone, so that they are the same on every machine. On a
device they follow from its memory.
Knows tasks and clients' rows. Does not know engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from motet.client import ClientData, Task
from motet.client.devices import CPU
from motet.client.population import sizes_of
from motet.core import Client
from motet.engines.device_names import free_memory, total_memory
from motet.errors import UsageError

_CHUNK_BYTES = 256 << 20  # what the clients of one chunk may take together on the CPU
_CHUNK_MOST = 128  # larger chunks gain nothing on the CPU
_CHUNK_MOST_THERE = 1024  # on a device: not measured
_COPIES = 6  # of the weights: initial ones, trained ones, gradients, an optimiser's state
_PASSES = (
    3  # what a step remembers, in units of a forward pass: itself, its gradients, and room to compute in
)
_SHARE = 0.5  # of a device's memory that a chunk may take
_STACKED_STEP = 64 << 20  # bytes of a client's step below which a device has room for more at the same time


def rows_and_weights(task: Task, clients_data: Mapping[Client, ClientData]) -> int:
    """Bytes of the largest client: its examples, and some copies of the weights."""
    weights = sum(v.numel() * 4 for v in task.w0.values())
    one = math.prod(next(iter(clients_data.values())).train.shape)
    rows = int(sizes_of(clients_data)[:, :2].sum(1).max()) * one * 4
    return rows + _COPIES * weights


def chunk_for(task: Task, clients_data: Mapping[Client, ClientData], device: torch.device, batch: int) -> int:
    """How many clients are stacked at once."""
    if device == CPU:
        return min(_CHUNK_MOST, max(1, _CHUNK_BYTES // rows_and_weights(task, clients_data)))
    most = total_memory(device)
    if most is None:
        return _CHUNK_MOST
    fit = max(1, int(_SHARE * most) // client_bytes(task, clients_data, batch))
    return min(_CHUNK_MOST_THERE, 1 << (fit.bit_length() - 1))  # a power of two, whatever else is in memory


def client_bytes(task: Task, clients_data: Mapping[Client, ClientData], batch: int) -> int:
    """Bytes of the largest client on a device, a step of a batch included."""
    return rows_and_weights(task, clients_data) + step_bytes(task, clients_data, batch)


def step_bytes(task: Task, clients_data: Mapping[Client, ClientData], batch: int) -> int:
    """Bytes that a step remembers of a batch; none is larger than the largest client."""
    first = next(iter(clients_data.values())).train.take()
    batch = min(batch, int(sizes_of(clients_data)[:, 0].max()))
    counting = _Counting()
    with torch.no_grad(), counting:
        task.predict(task.w0, first.x[:1])
    return _PASSES * batch * counting.bytes


def is_small_step(task: Task, clients_data: Mapping[Client, ClientData], batch: int) -> bool:
    """Whether a client's step leaves most of a device idle, so that clients are better stacked."""
    return step_bytes(task, clients_data, batch) < _STACKED_STEP


class _Counting(TorchDispatchMode):
    """Adds up the sizes of what every operation returns, views included: more than is held at any moment."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.bytes += sum(t.numel() * t.element_size() for t in tree_leaves(out) if isinstance(t, Tensor))
        return out


def check_memory(device: torch.device, at_once: int, one: int, how: str) -> None:
    """Refuse, before anything runs, what cannot fit; `at_once` clients of `one` bytes each."""
    free = free_memory(device)
    if free is None or at_once * one <= free:
        return
    if one > free:
        hint = "engine.device=cpu, a smaller method.batch, or a smaller network"
    else:
        hint = f"{how}={free // one}, or engine.device=cpu"
    who = "one client needs" if at_once == 1 else f"{at_once:,} clients at once need"
    raise UsageError(
        f"engine.device is {str(device)!r} with {_gib(free)} free, and {who} about {_gib(at_once * one)}.\n"
        f"hint: {hint}"
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 29 else f"{size / (1 << 20):.0f} MiB"
