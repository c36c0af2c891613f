"""Which device and engine are faster on this machine: a few rounds of FedAvg on drawn numbers, timed.

Two workloads: many clients with a logistic regression, and a few with a small convolutional network. Scores mean
nothing here, only times. The first rounds, in which steps are recorded and kernels are loaded, are not counted.
Knows engines, networks and clocks. Does not know data sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from motet import nets
from motet.client import Batch, ClientData, Task
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.choose import Choice
from motet.engines.device_names import device_named
from motet.engines.driver import play
from motet.engines.memory_needs import chunk_for
from motet.runs.find_methods import method_class

_CLASSES = 10
_WARM_UP = 2  # rounds that are not counted
ENGINES = ("vmap", "threads")


@dataclass(frozen=True)
class Workload:
    """Clients of one size, a network, and how they train."""

    name: str
    net: str
    shape: tuple[int, ...]
    clients: int
    rows: int
    batch: int


WORKLOADS = (
    Workload("logistic, 100 clients of 100 rows", "logistic", (784,), 100, 100, 10),
    Workload("cnn, 10 clients of 100 images of 28 x 28", "cnn", (1, 28, 28), 10, 100, 20),
)


@dataclass(frozen=True)
class Timed:
    """The median time of a round, and how many times faster it is than the fastest way on the CPU."""

    workload: str
    device: str
    engine: str
    seconds: float
    ratio: float


def measure(
    device: str, rounds: int, say: Callable[[str], None], workloads: tuple[Workload, ...] = WORKLOADS
) -> list[Timed]:
    """All workloads on the CPU and on the device, on each engine."""
    found: list[Timed] = []
    places = ["cpu"] if device == "cpu" else ["cpu", device]
    for work in workloads:
        took: dict[tuple[str, str], float] = {}
        for place, engine in ((p, e) for p in places for e in ENGINES):
            say(f"{work.name}: {engine} on {place}")
            took[place, engine] = seconds_of(work, place, engine, rounds)
        best = min(t for (place, _), t in took.items() if place == "cpu")
        found += [Timed(work.name, p, e, t, best / t) for (p, e), t in took.items()]
    return found


def seconds_of(work: Workload, device: str, engine: str, rounds: int) -> float:
    """The median of the rounds that count."""
    with single_threaded():
        return median(list(times(work, device, engine, rounds))[_WARM_UP:])


def times(work: Workload, device: str, engine: str, rounds: int) -> Iterator[float]:
    torch_device, clients = device_named(device), clients_of(work)
    task = Task(nets.build(work.net, {}, work.shape, _CLASSES, "classes", 0), "classes", _CLASSES)
    method: Any = method_class("fedavg")
    method = method(task, lr=0.01, batch=work.batch)
    chunk = chunk_for(task, clients, torch_device, work.batch)
    made, state = Choice(engine, chunk, device=device).build(clients), task.w0
    for number in range(_WARM_UP + rounds):
        began = time.perf_counter()
        state = play(made, method, state, Turn(number, made.clients, made.clients, number))
        yield time.perf_counter() - began


def clients_of(work: Workload) -> dict[str, ClientData]:
    draw = torch.Generator().manual_seed(0)

    def rows(many: int) -> Batch:
        y = torch.randint(0, _CLASSES, (many,), generator=draw)
        return Batch.of(torch.randn(many, *work.shape, generator=draw), y)

    none = rows(0)
    return {f"c{i:03}": ClientData(rows(work.rows), none, none) for i in range(work.clients)}
