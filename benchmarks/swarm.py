"""How fast swarms are: PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/swarm.py

Epochs of Boston's regression in a second of processor time, on one core (with numbers of the same shape where Boston
is not here: the speed does not depend on them), of:
- the paper's algorithm as a loop in plain NumPy: two evaluations of every particle in an epoch, all examples each time,
  no clients and no messages (the author's own notebook does 2,270 epochs/s);
- one swarm, and the 105 swarms of Table 1 side by side, both through an engine and with traffic counted, as in a run;
- the same, a round of epochs in one compiled call, if numba is installed.
Then the time of an ask, and how much of it the verbs take. On a shared machine compare the ratios.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import Turn, average
from motet.data.federated import DataError
from motet.data.sets import boston
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.wrappers.counted import Counted
from motet.methods.swarm import Swarm

sys.path.append(str(Path(__file__).parents[1]))
from experiments.swarm.batch import SwarmBatch

PARTICLES, BLOCK, TURNS = 20, 101, 5
SHARES = [(a / 5, b / 5) for a in range(6) for b in range(6 - a)]  # (w1, w2) of Table 1


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Boston's training rows, or as many examples and features."""
    try:
        pool = boston.load(as_published=True)
        print("Boston, four clients of 101 rows")
        return pool.x[: 4 * BLOCK], pool.y[: 4 * BLOCK]
    except DataError as lacking:
        print(f"numbers instead of Boston: {str(lacking).splitlines()[0]}")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4 * BLOCK, 13)) * 10.0 ** draw.integers(-1, 3, 13)
    return x, x @ draw.standard_normal(13) / 100 + draw.standard_normal(len(x))


class Notebook:
    """The epoch of the author's notebook, in as few calls as possible."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        wide = np.hstack([np.ones((len(x), 1)), x])
        self.clients = [(wide[i : i + BLOCK], y[i : i + BLOCK, None]) for i in range(0, len(x), BLOCK)]
        self.draw = np.random.default_rng(0)
        self.theta = self.draw.random((wide.shape[1], PARTICLES))
        self.v, self.alpha, self.failures, self.best = np.zeros_like(self.theta), 100.0, 0, np.inf

    def losses(self, theta: np.ndarray) -> np.ndarray:
        return sum(((x @ theta - y) ** 2).sum(0) for x, y in self.clients) / (4 * BLOCK)

    def go(self, epochs: int) -> None:
        for _ in range(epochs):
            old = self.losses(self.theta)
            fell, self.best = old.min() < self.best, old.min()
            self.failures += not fell
            self.alpha *= 2 if fell else 1
            if self.failures == 5:
                self.failures, self.alpha = 0, self.alpha / 2
            gbest = self.theta[:, [old.argmin()]]
            r1, r2 = self.draw.random(self.theta.shape), 2 * self.draw.random(self.theta.shape) - 1
            self.v = self.alpha * (0.2 * self.v + 0.6 * r1 * (gbest - self.theta) + 0.2 * r2)
            tried = self.theta + self.v
            self.theta = np.where(self.losses(tried) < old, tried, self.theta)


class Ours:
    """One swarm, or all settings of Table 1 with five swarms each."""

    def __init__(self, x: np.ndarray, y: np.ndarray, grid: bool, fuses: bool = False) -> None:
        tensors = [
            (torch.tensor(x[i : i + BLOCK]), torch.tensor(y[i : i + BLOCK])) for i in range(0, len(x), BLOCK)
        ]
        batches = [Batch.of(*pair) for pair in tensors]
        clients = {f"block-{i}": ClientData(b, b, b) for i, b in enumerate(batches)}
        self.engine = Counted(Loop(clients, fuses=fuses))
        self.task = Task(nn.Sequential(nn.Flatten(), nn.Linear(13, 1)), "numbers", 1)
        w1s, w2s = zip(*SHARES, strict=True)
        one = partial(Swarm, w1=0.2, w2=0.6)
        table = partial(SwarmBatch, w1s=w1s, w2s=w2s, swarms=5)
        shared = {"particles": PARTICLES, "alpha": 100.0, "patience": 5, "first": "unit"}
        self.method = partial(table if grid else one, self.task, **shared)
        self.number = -1
        self.state = start(self.engine, self.method(stretch=1), self.turn())

    def turn(self) -> Turn:
        clients = self.engine.clients
        return Turn(self.number, clients, clients, seed_of(0, self.number))

    def go(self, epochs: int) -> None:
        self.number += 1
        self.state = play(self.engine, self.method(stretch=epochs), self.state, self.turn())


def rate(go: Callable[[int], None], epochs: int) -> float:
    began = time.process_time()
    go(epochs)
    return epochs / (time.process_time() - began)


def cost(f: Callable[[], object], times: int = 4000) -> float:
    """Microseconds of one call, in the best of some turns."""

    def one() -> float:
        began = time.process_time()
        for _ in range(times):
            f()
        return (time.process_time() - began) / times * 1e6

    return min(one() for _ in range(TURNS))


def main() -> None:
    torch.set_num_threads(1)
    x, y = rows()
    sides = {
        "notebook": (Notebook(x, y), 3000),
        "one": (Ours(x, y, False), 6000),
        "table": (Ours(x, y, True), 600),
    }
    best = {k: max(rate(s.go, n) for _ in range(TURNS)) for k, (s, n) in sides.items()}
    print(f"a plain loop            {best['notebook']:>9,.0f} epochs/s")
    print(
        f"one swarm               {best['one']:>9,.0f} epochs/s, {best['one'] / best['notebook']:.1f} times that"
    )
    swarms = 5 * len(SHARES) * best["table"]
    print(f"{5 * len(SHARES)} swarms              {swarms:>9,.0f} swarm-epochs/s: Table 1 takes "
          f"{5 * len(SHARES) * 1e6 / swarms / 60:.1f} core minutes")  # fmt: skip
    if find_spec("numba"):
        compiled(x, y)
    parts(sides["one"][0])


def compiled(x: np.ndarray, y: np.ndarray) -> None:
    """A round of 1,000 epochs as one call; the first round compiles."""
    for name, grid, many in (("one swarm", False, 1), ("105 swarms", True, 105)):
        ours = Ours(x, y, grid, fuses=True)
        ours.go(1000)
        best = max(rate(ours.go, 1000) for _ in range(TURNS))
        print(f"{name + ', compiled':<24}{many * best:>9,.0f} swarm-epochs/s")


def parts(ours: Ours) -> None:
    """Where an epoch of one swarm goes."""
    engine, method = ours.engine, ours.method(stretch=1)
    theta = torch.cat([ours.state["theta"], ours.state["theta"][:, :1]], 1)
    client = engine.clients[0]
    inside = engine.engine
    keep, data = inside.keep(client), inside.data(client)
    ask = average(method.loss_of_particles, engine.clients, send={"theta": theta})
    verb = cost(lambda: method.loss_of_particles({"theta": theta}, keep, data))
    particles, root = theta[0].numpy(), keep.numpy()
    product = cost(lambda: particles.dot(root[:-1]))
    whole = cost(lambda: engine.ask(ask))
    of_verbs = f"verbs {4 * verb:.0f} us (4 products of matrices {4 * product:.0f})"
    print(f"an ask of 4 clients {whole:.0f} us, of which {of_verbs}")


if __name__ == "__main__":
    main()
