"""Which engine, and why. `auto` goes by what the method's verbs are, the network, the number of clients
and the length of the run.

The choice is made once, at a run's first start, and written into its recipe: resuming and verifying follow it.
Knows engines by name. Does not know methods, which say themselves what suits them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch.nn import RNNBase

from motet.client import ClientData, Task
from motet.client.devices import CPU, widest_float
from motet.core import Client, Method, is_solo, is_verb
from motet.engines.client_state import ClientStates
from motet.engines.device_names import best_there, device_named, free_memory
from motet.engines.loop import Loop
from motet.engines.memory_needs import check_memory, chunk_for, client_bytes, is_small_step
from motet.engines.threads import Threads, cores
from motet.engines.vmap import Vmap
from motet.errors import UsageError

_WORTH = 40_000  # batched steps from which compiling (some twenty seconds, once) pays for itself
_WORTH_FUSING = 10_000  # asks from which compiling them (some seconds, once) pays for itself

_NOTHING = (
    "; not compiled, though engine.compile=yes: it compiles batched steps of the engine vmap, or asks that can be "
    "fused, and here are neither"
)


@dataclass(frozen=True)
class Choice:
    """An engine with nothing left open."""

    name: str
    chunk: int = 0
    compiled: bool = False
    why: str = ""
    device: str = "cpu"
    workers: int = 0  # threads that the device has room for; 0 = as many as there are cores

    def build(
        self, clients_data: Mapping[Client, ClientData], keeps: ClientStates | None = None, workers: int = 0
    ) -> Loop:
        device = device_named(self.device)
        if self.name == "vmap":
            return Vmap(clients_data, keeps, chunk=self.chunk, compiled=self.compiled, device=device)
        if self.name == "threads":
            return Threads(clients_data, keeps, workers=workers or self.workers or None, device=device)
        if self.compiled and find_spec("numba") is None:
            raise UsageError(
                "engine.compile is yes, which on the engine loop needs numba, and it is not installed.\n"
                "hint: pip install 'motet[speed]'; a new run may have engine.compile=no"
            )
        return Loop(clients_data, keeps, fuses=self.compiled, device=device)


def choose(
    name: str,
    task: Task,
    clients_data: Mapping[Client, ClientData],
    steps: Callable[[int], int],
    chunk: int = 0,
    compiled: str = "auto",
    method: Method | None = None,
    rounds: int = 1,
    device: str = "cpu",
    workers: int = 0,
) -> Choice:
    """`steps` says how many batched steps the whole run takes with so many clients in a chunk; `compiled` is auto, yes
    or no."""
    if (device := suiting_device(device, method)) != "cpu":
        return choose_there(name, task, clients_data, chunk, compiled, method, device, workers)
    why = f"engine.name={name}"
    if name == "auto":
        name, why = pick(task, len(clients_data), method)
    if name == "loop" and method and method.fused_asks():
        yes, reason = (
            worth_fusing(method.fused_asks() * rounds)
            if compiled == "auto"
            else (compiled == "yes", f"engine.compile={compiled}")
        )
        return Choice("loop", 0, yes, f"{why}; {'compiled' if yes else 'not compiled'}: {reason}")
    if name != "vmap":
        return Choice(name, why=why + (_NOTHING if compiled == "yes" else ""))
    chunk = chunk or chunk_for(task, clients_data, CPU, 0)
    yes, reason = (
        worth(steps(chunk)) if compiled == "auto" else (compiled == "yes", f"engine.compile={compiled}")
    )
    return Choice("vmap", chunk, yes, f"{why}; {'compiled' if yes else 'not compiled'}: {reason}")


def pick(task: Task, clients: int, method: Method | None = None) -> tuple[str, str]:
    name, why = method.suits() if method else ("", "")
    if name:
        return name, why
    if method and clients > 1 and all_solo(method):
        return "threads", "what clients do is ordinary Python, and runs best with one client per thread"
    if not task.stackable:
        return "threads", "batch statistics want one client at a time"
    if not task.dense:
        return "threads", "convolutions and recurrent layers run best with one client per thread"
    if clients < 2:
        whose = f"{type(method).__name__.lower()} has" if method else "there is"
        return "loop", f"{whose} one client, which leaves nothing to batch"
    return "vmap", "a dense network: clients run stacked as one tensor program"


def all_solo(method: Method) -> bool:
    """Whether no verb of the method can be stacked."""
    members = (getattr(type(method), name, None) for name in dir(type(method)))
    verbs = [f for f in members if callable(f) and is_verb(f)]
    return bool(verbs) and all(map(is_solo, verbs))


def worth_fusing(asks: int) -> tuple[bool, str]:
    if asks < _WORTH_FUSING:
        return False, f"{asks:,} asks are too few to pay for it"
    if find_spec("numba") is None:
        return False, "numba is not installed (pip install 'motet[speed]')"
    return True, f"{asks:,} asks in all, a round of them in one call"


def worth(steps: int) -> tuple[bool, str]:
    if steps < _WORTH:
        return False, f"{steps:,} batched steps are too few to pay for it"
    if not (shutil.which(os.environ.get("CXX", "")) or shutil.which("g++") or shutil.which("clang++")):
        return False, "no C++ compiler was found"
    return True, f"{steps:,} batched steps pay for it"


# ---- on another device ----


def suiting_device(name: str, method: Method | None = None) -> str:
    """The device that `name` means here. Ordinary Python and swarms run on the CPU, whatever is asked for."""
    device = best_there() if name == "auto" else str(device_named(name))
    return "cpu" if method and (all_solo(method) or method.suits()[0]) else device


def choose_there(
    name: str,
    task: Task,
    clients_data: Mapping[Client, ClientData],
    chunk: int,
    compiled: str,
    method: Method | None,
    device_name: str,
    workers: int,
) -> Choice:
    """As `choose`, on another device than the CPU: nothing is compiled unless it is asked for."""
    device, batch = device_named(device_name), int(getattr(method, "batch", 16))
    check_precision(task, device)
    why = f"engine.name={name}"
    if name == "auto":
        name, why = pick_there(task, clients_data, batch)
    one = client_bytes(task, clients_data, batch)
    if name == "vmap":
        chunk = chunk or chunk_for(task, clients_data, device, batch)
        check_memory(device, min(chunk, len(clients_data)), one, "engine.chunk")
        return Choice("vmap", chunk, compiled == "yes", f"{why}; on {device}", device_name)
    check_memory(device, workers if name == "threads" and workers else 1, one, "engine.workers")
    free = free_memory(device)
    fit = 0 if free is None or name != "threads" else min(cores(), max(1, free // one))
    return Choice(name, why=f"{why}; on {device}", device=device_name, workers=fit)


def pick_there(task: Task, clients_data: Mapping[Client, ClientData], batch: int) -> tuple[str, str]:
    if not task.stackable:
        return "threads", "batch statistics want one client at a time"
    if any(isinstance(m, RNNBase) for m in task.net.modules()):
        return "threads", "recurrent layers run best as one call for each client"
    if len(clients_data) < 2:
        return "loop", "there is one client, which leaves nothing to batch"
    if not is_small_step(task, clients_data, batch):
        return "threads", "a step of one client is work enough for the device"
    return "vmap", "small steps: clients run stacked as one tensor program"


def check_precision(task: Task, device: torch.device) -> None:
    if any(v.dtype == torch.float64 for v in task.w0.values()) and widest_float(device) != torch.float64:
        raise UsageError(
            f"engine.device is {str(device)!r}, which has no double precision, and this data set needs it.\n"
            "hint: engine.device=cpu"
        )
