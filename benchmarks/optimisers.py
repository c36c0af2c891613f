"""What a round of Adam and AdamW costs beside a round of SGD: workload W1, compiled, turn about in one process.

Every turn plays one round with each optimiser, each time another one first, so that a busy neighbour harms all of them.
Times are those of the processor, of which a round uses one thread: a clock on the wall would count neighbours too.
The ratio is of the fastest rounds. Data are those of bench.py.

    python benchmarks/optimisers.py [--turns 30] [--work W1] [--plain]
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.client.optimisers import OptimiserName
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.vmap import Vmap
from motet.methods.fedavg import FedAvg
from workloads import WORKS, Work, generate, load

HERE = Path(__file__).parent
RATES = {"sgd": 0.1, "adam": 0.01, "adamw": 0.01}


@dataclass
class Side:
    """One optimiser: its method, the state that it has reached, and how long its rounds took."""

    method: FedAvg
    engine: Vmap
    state: Any = None
    train: list[float] = field(default_factory=list)  # seconds
    whole: list[float] = field(default_factory=list)  # with scoring

    def turn(self, number: int) -> Turn:
        return Turn(number, self.engine.clients, self.engine.clients, seed_of(0, "turn", number))

    def play(self, number: int) -> None:
        if number == 0:
            self.state = start(self.engine, self.method, self.turn(-1))
        began = time.thread_time()
        self.state = play(self.engine, self.method, self.state, self.turn(number))
        self.train.append(time.thread_time() - began)
        self.engine.evaluate(self.method, self.state, self.turn(number), "val")
        self.whole.append(time.thread_time() - began)


def clients_of(work: Work, folder: Path) -> dict[str, ClientData]:
    generate(work, folder)
    train_x, train_y, test_x, test_y = map(torch.from_numpy, load(work, folder))
    none = Batch.of(test_x[0][:0], test_y[0][:0])
    return {
        f"client-{i:05}": ClientData(Batch.of(train_x[i], train_y[i]), Batch.of(test_x[i], test_y[i]), none)
        for i in range(work.clients)
    }


def sides_of(work: Work, folder: Path, compiled: bool) -> dict[str, Side]:
    torch.manual_seed(0)
    task = Task(nn.Linear(work.shape[0], work.classes), "classes", work.classes)
    clients, how = clients_of(work, folder), {"batch": work.batch, "epochs": work.epochs}
    return {
        name: Side(
            FedAvg(task, lr=RATES[name], optimiser=name, decay=0.01 * (name == "adamw"), **how),
            Vmap(clients, chunk=128, compiled=compiled),
        )
        for name in get_args(OptimiserName)
    }


def lines(sides: dict[str, Side], skip: int) -> Iterator[str]:
    yield "| optimiser | training, fastest round | with scoring | training / SGD | with scoring / SGD | medians / SGD |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    base = sides["sgd"]
    for name, side in sides.items():
        train, whole = min(side.train[skip:]), min(side.whole[skip:])
        ratios = (
            train / min(base.train[skip:]),
            whole / min(base.whole[skip:]),
            median(side.train[skip:]) / median(base.train[skip:]),
        )
        shown = " | ".join(f"{r:.2f}" for r in ratios)
        yield f"| {name} | {1000 * train:.1f} ms | {1000 * whole:.1f} ms | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Rounds of Adam and AdamW beside rounds of SGD.")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--work", default="W1", choices=[k for k, w in WORKS.items() if w.net == "linear"])
    parser.add_argument("--plain", action="store_true", help="recorded steps, not compiled")
    asked = parser.parse_args()
    work, skip = WORKS[asked.work], 3
    with single_threaded():
        sides = sides_of(work, HERE / ".data", not asked.plain)
        for number in range(skip + asked.turns):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                sides[name].play(number)
    how = "recorded" if asked.plain else "compiled"
    print(f"{work.name}, {how}, {asked.turns} turns, torch {torch.__version__}, {platform.machine()}\n")
    print("\n".join(lines(sides, skip)))


if __name__ == "__main__":
    main()
