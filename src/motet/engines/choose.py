"""Which engine, and why. `auto` goes by the network, the number of clients and the length of the run.

The choice is made once, at a run's first start, and written into its recipe: resuming and verifying follow it.
Knows engines by name. Does not know methods.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from motet.client import ClientData, Task
from motet.core import Client
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap

_WORTH = 40_000  # batched steps from which compiling (some twenty seconds, once) pays for itself
_CHUNK_BYTES = 256 << 20  # what the clients of one chunk may take together
_CHUNK_MOST = 128  # larger chunks gain nothing


@dataclass(frozen=True)
class Choice:
    """An engine with nothing left open."""

    name: str
    chunk: int = 0
    compiled: bool = False
    why: str = ""

    def build(
        self, clients_data: Mapping[Client, ClientData], keeps: ClientStates | None = None, workers: int = 0
    ) -> Loop:
        if self.name == "vmap":
            return Vmap(clients_data, keeps, chunk=self.chunk, compiled=self.compiled)
        if self.name == "threads":
            return Threads(clients_data, keeps, workers=workers or None)
        return Loop(clients_data, keeps)


def choose(
    name: str,
    task: Task,
    clients_data: Mapping[Client, ClientData],
    steps: int,
    chunk: int = 0,
    compiled: str = "auto",
) -> Choice:
    """`steps` is how many batched steps the whole run will take; `compiled` is auto, yes or no."""
    why = f"engine.name={name}"
    if name == "auto":
        name, why = pick(task, len(clients_data))
    if name != "vmap":
        return Choice(name, why=why)
    chunk = chunk or min(_CHUNK_MOST, fitting(task, clients_data))
    steps *= -(-len(clients_data) // chunk)
    yes, reason = worth(steps) if compiled == "auto" else (compiled == "yes", f"engine.compile={compiled}")
    return Choice("vmap", chunk, yes, f"{why}; {'compiled' if yes else 'not compiled'}: {reason}")


def pick(task: Task, clients: int) -> tuple[str, str]:
    if not task.stackable:
        return "threads", "batch statistics want one client at a time"
    if not task.dense:
        return "threads", "convolutions and recurrent layers run best with one client per thread"
    if clients < 2:
        return "loop", "one client leaves nothing to batch"
    return "vmap", "a dense network: clients run stacked as one tensor program"


def worth(steps: int) -> tuple[bool, str]:
    if steps < _WORTH:
        return False, f"{steps:,} batched steps are too few to pay for it"
    if not (shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")):
        return False, "no C++ compiler was found"
    return True, f"{steps:,} batched steps pay for it"


def fitting(task: Task, clients_data: Mapping[Client, ClientData]) -> int:
    """How many of the largest client fit into a chunk: its examples, and some copies of the weights."""
    weights = sum(v.numel() * 4 for v in task.w0.values())
    one = math.prod(next(iter(clients_data.values())).train.shape)
    rows = max(h.n + len(h.val) for h in clients_data.values()) * one * 4
    return max(1, _CHUNK_BYTES // (rows + 6 * weights))
