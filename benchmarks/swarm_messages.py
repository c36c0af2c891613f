"""The gain of more candidates in a message: PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/swarm_messages.py

Linear regression on 400 examples with 12 features of different scale and four clients. Prints the difference between
the best loss and that of least squares after 100, 200 and 300 messages (the median of four seeds), with more particles
and with more tries of each particle. A message holds particles * tries candidates.
"""

from __future__ import annotations

import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.methods.swarm import Swarm

FEATURES, ROWS, SEEDS = 12, 400, 4
SIZES = ((20, 1), (80, 1), (320, 1), (20, 4), (20, 16), (5, 16))  # (particles, tries)


def federation() -> tuple[dict[str, ClientData], float]:
    """Four clients, and the loss of least squares."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, FEATURES, generator=draw) * torch.logspace(-1, 1, FEATURES)
    y = x @ torch.randn(FEATURES, generator=draw) + torch.randn(ROWS, generator=draw)
    y = (y - y.mean()) / y.std()
    wide = torch.cat([x, torch.ones(ROWS, 1)], 1).double()
    best = torch.linalg.lstsq(wide, y.double()[:, None]).solution
    batches = [Batch.of(x[i::4], y[i::4]) for i in range(4)]
    least = float((wide @ best - y.double()[:, None]).square().mean())
    return {f"c{i}": ClientData(b, b, b) for i, b in enumerate(batches)}, least


def gaps(particles: int, tries: int) -> list[float]:
    clients_data, least = federation()
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 1)), "numbers", 1)
    method = Swarm(task, particles=particles, tries=tries, stretch=100)
    found = []
    for seed in range(SEEDS):
        engine = Loop(clients_data)
        turns = [Turn(t, engine.clients, engine.clients, seed_of(seed, t)) for t in range(-1, 3)]
        state = start(engine, method, turns[0])
        row = []
        for turn in turns[1:]:
            state = play(engine, method, state, turn)
            row.append(float(state["loss"].min()) - least)
        found.append(row)
    return torch.tensor(found).median(0).values.tolist()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("particles  tries  in a message   after 100     200     300 messages")
    for particles, tries in SIZES:
        a, b, c = gaps(particles, tries)
        print(
            f"{particles:>9}  {tries:>5}  {particles * tries:>12}  {a:>10.3f}  {b:>6.3f}  {c:>6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
