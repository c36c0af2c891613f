"""Which engine, and why. `auto` goes by what the method's verbs are, the network, the number of clients
and the length of the run.

The choice is made once, at a run's first start, and written into its recipe: resuming and verifying follow it.
Knows engines by name. Does not know methods, which say themselves what suits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch.nn import RNNBase

from motet.client import ClientData, Task
from motet.client.client_by_client import why_not_fused
from motet.client.devices import CPU, widest_float
from motet.client.step_library import compiler
from motet.core import Client, Method, is_solo, is_verb
from motet.engines.client_state import ClientStates
from motet.engines.cores import cores
from motet.engines.device_names import best_there, device_named, free_memory
from motet.engines.loop import Loop
from motet.engines.memory_needs import check_memory, chunk_for, client_bytes, is_small_step
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.errors import UsageError

if TYPE_CHECKING:
    from motet.engines.ray_crew import Crew

_STACKED_SHARDS = 8  # at least so many chunks on a cluster, unless
_SMALLEST_SHARD = 8  # they would have fewer clients than this
_WORTH = 40_000  # batched steps from which compiling them (some twenty seconds, once) pays for itself
_WORTH_ONE_BY_ONE = (
    5_000  # the same where a client's steps are one call, which takes a second or two to compile
)
# Weights of a dense network above which clients are not stacked: a stacked step streams all clients' weights through
# memory. By benchmarks/widths.py stacked clients and one client per thread are even at about 110,000 weights with 100
# clients, 150,000 with batches of 64, and 180,000 or more with 18 clients. Up to here a client's compiled steps fit
# into a core's cache, and are faster than both.
_WIDE = 130_000
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
    inner: str = ""  # of ray: the engine in each of its processes
    crew: Crew | None = None  # of ray: these processes, while a run has them

    def build(
        self, clients_data: Mapping[Client, ClientData], keeps: ClientStates | None = None, workers: int = 0
    ) -> Loop:
        if self.name == "ray":
            return self.build_on_cluster(clients_data, keeps)
        device = device_named(self.device)
        if self.name == "vmap":
            check_compiler(self.compiled)
            return Vmap(
                clients_data, keeps, chunk=self.chunk, compiled=self.compiled, workers=workers, device=device
            )
        if self.name == "threads":
            return Threads(clients_data, keeps, workers=workers or self.workers or None, device=device)
        if self.compiled and find_spec("numba") is None:
            raise UsageError(
                "engine.compile is yes, which on the engine loop needs numba, and it is not installed.\n"
                "hint: pip install 'motet[speed]'; a new run may have engine.compile=no"
            )
        return Loop(clients_data, keeps, fuses=self.compiled, device=device)

    def build_on_cluster(self, clients_data: Mapping[Client, ClientData], keeps: ClientStates | None) -> Loop:
        from motet.engines.ray import Ray, RayStacked

        if self.crew is None:
            raise UsageError("nobody opened a cluster for the engine ray.\nhint: motet.run does")
        if self.inner == "vmap":
            return RayStacked(clients_data, self.crew, keeps, chunk=self.chunk)
        return Ray(clients_data, self.crew, keeps)


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
    inner: str = "auto",
) -> Choice:
    """`steps` says how many batched steps the whole run takes with so many clients in a chunk; `compiled` is auto, yes
    or no."""
    if name == "ray":
        return choose_inner(inner, task, clients_data, steps, chunk, compiled, method, device)
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
        worth(steps(chunk), partial(why_not_one_by_one, task, clients_data, method))
        if compiled == "auto"
        else (compiled == "yes", f"engine.compile={compiled}")
    )
    return Choice("vmap", chunk, yes, f"{why}; {'compiled' if yes else 'not compiled'}: {reason}")


def choose_inner(
    inner: str,
    task: Task,
    clients_data: Mapping[Client, ClientData],
    steps: Callable[[int], int],
    chunk: int,
    compiled: str,
    method: Method | None,
    device: str,
) -> Choice:
    """The engine in each process of a cluster. Chunks are small enough that there are some for several processes; how
    many processes there are changes nothing."""
    if device not in ("cpu", "auto"):
        raise UsageError(
            f"engine.device is {device!r}, and the engine ray computes on CPUs\nhint: engine.device=cpu"
        )
    small = max(_SMALLEST_SHARD, -(-len(clients_data) // _STACKED_SHARDS))
    most = chunk or min(small, chunk_for(task, clients_data, CPU, 0))
    found = choose(inner, task, clients_data, steps, most, compiled, method)
    compiles = (
        found.name == "vmap" and found.compiled
    )  # a swarm's rounds in one call need all clients in one process
    why = f"engine.name=ray, with {found.name} inside: {found.why}"
    return replace(found, name="ray", inner=found.name, compiled=compiles, why=why)


def pick(task: Task, clients: int, method: Method | None = None) -> tuple[str, str]:
    name, why = method.suits() if method else ("", "")
    if name:
        return name, why
    if method and clients > 1 and all_solo(method):
        return "threads", "what clients do is ordinary Python, and runs best with one client per thread"
    if not task.stackable:
        return "threads", f"{task.why_not_stacked}: it runs with one client per thread"
    if not task.dense:
        return "threads", "convolutions and recurrent layers run best with one client per thread"
    if clients < 2:
        whose = f"{type(method).__name__.lower()} has" if method else "there is"
        return "loop", f"{whose} one client, which leaves nothing to batch"
    weights = sum(w.numel() for w in task.w0.values())
    if weights > _WIDE:
        return "threads", f"a dense network of {weights:,} weights: it runs best with one client per thread"
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


def worth(steps: int, why_not: Callable[[], str]) -> tuple[bool, str]:
    """`why_not` says why clients cannot take all their steps one client after another, "" if they can."""
    if steps < _WORTH_ONE_BY_ONE:
        return False, f"{steps:,} batched steps are too few to pay for it"
    if compiler() is None:
        return False, "no C++ compiler that works was found"
    reason = why_not()
    if not reason:
        return True, f"{steps:,} batched steps pay for it, all steps of a client as one call"
    if steps < _WORTH:
        return (
            False,
            f"{steps:,} batched steps are too few to pay for it where all clients step together ({reason})",
        )
    return True, f"{steps:,} batched steps pay for it; all clients step together ({reason})"


def why_not_one_by_one(task: Task, clients_data: Mapping[Client, ClientData], method: Method | None) -> str:
    """Why this network and loss cannot be trained client by client in compiled calls; "" if they can."""
    first = next(iter(clients_data.values()))
    rows = first.train.take()
    if first.augment:
        return "images are shifted and mirrored"
    return why_not_fused(task.loss, task.w0, rows.x, rows.y, int(getattr(method, "batch", 16)))


def check_compiler(compiled: bool) -> None:
    if compiled and compiler() is None:
        raise UsageError(
            "engine.compile is yes, which needs a C++ compiler, and none that works was found.\n"
            "hint: install g++ or clang++, or name one in CXX; a new run may have engine.compile=no"
        )


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
        return "threads", f"{task.why_not_stacked}: it runs with one client per thread"
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
