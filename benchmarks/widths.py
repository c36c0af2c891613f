"""From which width on stacked clients are slower than one client after another: dense networks on all engines.

A task is a network of two hidden layers and clients with made rows. In each turn every engine plays a round of FedAvg,
each time another one first, so that a busy neighbour harms all of them. Ratios are of medians, by the clock and by the
processor's time of all threads: the second is what counts where other processes use the machine. engines/choose.py
goes by what this prints.

    python benchmarks/widths.py [--hidden 64,128,192,256,384,512] [--clients 18] [--rows 62] [--batch 16] [--turns 9]
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.client.client_by_client import why_not_fused
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.cores import cores
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg

FEATURES, CLASSES = 64, 10
SKIPPED = 2  # first rounds: threads start, steps are recorded and compiled
ENGINES: dict[str, Callable[..., Any]] = {
    "loop": Loop,
    "threads": Threads,
    "vmap": Vmap,
    "compiled": partial(Vmap, compiled=True),
}


@dataclass
class Side:
    """One engine: the state that it has reached, and how long its rounds took."""

    engine: Any
    method: FedAvg
    state: Any = None
    wall: list[float] = field(default_factory=list)  # seconds
    processor: list[float] = field(default_factory=list)

    def turn(self, number: int) -> Turn:
        return Turn(number, self.engine.clients, self.engine.clients, seed_of(0, "turn", number))

    def play(self, number: int) -> None:
        if number == 0:
            self.state = start(self.engine, self.method, self.turn(-1))
        began, used = time.perf_counter(), time.process_time()
        self.state = play(self.engine, self.method, self.state, self.turn(number))
        self.wall.append(time.perf_counter() - began)
        self.processor.append(time.process_time() - used)


def clients_of(many: int, rows: int) -> dict[str, ClientData]:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(many, rows, FEATURES, generator=g), torch.randint(CLASSES, (many, rows), generator=g)
    none = Batch.of(x[0][:0], y[0][:0])
    return {f"client-{i:03}": ClientData(Batch.of(x[i], y[i]), none, none) for i in range(many)}


def sides_of(hidden: int, clients: dict[str, ClientData], batch: int) -> tuple[int, dict[str, Side]]:
    """The number of weights, and the engines; not the compiled one where its steps are not one call for each client:
    then it takes inductor half a minute, and only the longest runs are compiled."""
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    task = Task(nn.Sequential(*layers, nn.Linear(hidden, CLASSES)), "classes", CLASSES)
    rows = next(iter(clients.values())).train.take()
    fused = not why_not_fused(task.loss, task.w0, rows.x, rows.y, batch)
    sides = {
        name: Side(make(clients), FedAvg(task, lr=0.05, batch=batch))
        for name, make in ENGINES.items()
        if fused or name != "compiled"
    }
    return sum(a.numel() for a in task.w0.values()), sides


def measured(sides: dict[str, Side], turns: int) -> None:
    for number in range(SKIPPED + turns):
        names = list(sides)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            sides[name].play(number)


def line(hidden: int, weights: int, sides: dict[str, Side]) -> str:
    shown = [str(hidden), f"{weights:,}", f"{1000 * median(sides['vmap'].wall[SKIPPED:]):.1f}"]
    for what in ("wall", "processor"):
        took = {name: median(getattr(side, what)[SKIPPED:]) for name, side in sides.items()}
        shown += [
            f"{took['vmap'] / took[n]:.2f}" if n in took else "–" for n in ("threads", "loop", "compiled")
        ]
    return f"| {' | '.join(shown)} |"


def lines(asked: Any) -> Iterator[str]:
    yield (
        "| hidden | weights | vmap, ms | vmap / threads | vmap / loop | vmap / compiled "
        "| processor: vmap / threads | vmap / loop | vmap / compiled |"
    )
    yield "| ---: " * 9 + "|"
    clients = clients_of(asked.clients, asked.rows)
    for hidden in map(int, asked.hidden.split(",")):
        weights, sides = sides_of(hidden, clients, asked.batch)
        measured(sides, asked.turns)
        yield line(hidden, weights, sides)


def main() -> None:
    parser = argparse.ArgumentParser(description="Dense networks of growing width on all engines.")
    parser.add_argument("--hidden", default="64,128,192,256,384,512", help="units of both hidden layers")
    parser.add_argument("--clients", type=int, default=18)
    parser.add_argument("--rows", type=int, default=62, help="of each client")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=9)
    asked = parser.parse_args()
    how = f"{asked.clients} clients of {asked.rows} rows, batch {asked.batch}, {asked.turns} turns, {cores()} cores"
    print(f"{how}, load {os.getloadavg()[0]:.0f}, torch {torch.__version__}, {platform.machine()}\n")
    with single_threaded():
        for text in lines(asked):
            print(text, flush=True)


if __name__ == "__main__":
    main()
