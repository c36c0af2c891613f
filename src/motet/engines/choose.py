"""Which engine, and why. `auto` goes by what the method's verbs are, the network, the number of clients
and the length of the run.

The choice is made once, at a run's first start, and written into its recipe: resuming and verifying follow it.
Knows engines by name. Does not know methods, which say themselves what suits them.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from motet.client import ClientData, Task
from motet.core import Client, Method, is_solo, is_verb
from motet.engines.client_state import ClientStates
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.errors import UsageError

_WORTH = 40_000  # batched steps from which compiling (some twenty seconds, once) pays for itself
_WORTH_FUSING = 10_000  # asks from which compiling them (some seconds, once) pays for itself
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
        if self.compiled and find_spec("numba") is None:
            raise UsageError(
                "engine.compile is yes, which on the engine loop needs numba, and it is not installed.\n"
                "hint: pip install 'motet[speed]'; a new run may have engine.compile=no"
            )
        return Loop(clients_data, keeps, fuses=self.compiled)


def choose(
    name: str,
    task: Task,
    clients_data: Mapping[Client, ClientData],
    steps: int,
    chunk: int = 0,
    compiled: str = "auto",
    method: Method | None = None,
    rounds: int = 1,
) -> Choice:
    """`steps` is how many batched steps the whole run will take; `compiled` is auto, yes or no."""
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
        return Choice(name, why=why)
    chunk = chunk or min(_CHUNK_MOST, fitting(task, clients_data))
    steps *= -(-len(clients_data) // chunk)
    yes, reason = worth(steps) if compiled == "auto" else (compiled == "yes", f"engine.compile={compiled}")
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


def fitting(task: Task, clients_data: Mapping[Client, ClientData]) -> int:
    """How many of the largest client fit into a chunk: its examples, and some copies of the weights."""
    weights = sum(v.numel() * 4 for v in task.w0.values())
    one = math.prod(next(iter(clients_data.values())).train.shape)
    rows = max(h.n + len(h.val) for h in clients_data.values()) * one * 4
    return max(1, _CHUNK_BYTES // (rows + 6 * weights))
