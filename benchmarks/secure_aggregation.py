"""What a masked sum costs: PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/secure_aggregation.py

All clients and the server work in this process, on as many threads as there are cores, so that the times are those of
all parties together; between organisations each client does its own part. Prints wall and processor seconds, bytes
that one client sends, and by how much the mean is off beside the stated bound.

The sparse graph of 50 clients has 20 neighbours each, 16 of 21 shares open a secret, and 45 replies must come: with
up to 10 clients colluding with the server and up to 5 lost, nobody's both secrets can be had and the others stay
connected, with certainty (`sparse_graph` in guard/masks/neighbours.py).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

from motet.guard.masks.in_process import LocalSum
from motet.guard.masks.neighbours import Graph, complete_graph, sparse_graph


def measured(clients: int, width: int, graph: Callable[[int], Graph], bits: int, lost: int) -> str:
    draw = np.random.default_rng(0)
    inputs = {f"c{i:04d}": (draw.normal(size=width), float(draw.integers(10, 500))) for i in range(clients)}
    gone = set(list(inputs)[:lost])
    made = LocalSum(
        bits, 8.0, graph=graph, lost=lambda s, c: s == "masked" and c in gone, workers=os.cpu_count() or 1
    )
    wall, cpu = time.perf_counter(), time.process_time()
    server, total = made.run(inputs)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    weights = {c: inputs[c][1] for c in server.alive}
    plain = sum(inputs[c][0] * w for c, w in weights.items()) / sum(weights.values())
    numbers = server.terms.numbers
    off = float(np.abs(numbers.mean(total) - plain).max())
    bound = numbers.bound([w / server.terms.unit for w in weights.values()])
    kind = "complete" if server.terms.graph.complete else f"sparse {server.terms.neighbours}"
    up = max(made.sent.values()) / 1e6
    return (
        f"{clients:>7}  {width:>9,}  {kind:>9}  {bits:>4}  {lost:>4}  {wall:>6.2f}  {cpu:>6.2f}  {up:>8.2f}  "
        f"{off:.1e}  {bound:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--width", type=int, default=1_000_000)
    given = parser.parse_args()
    print("clients    numbers      graph  bits  lost  wall s   cpu s  MB up     off      bound")
    for graph, bits, lost in (
        (sparse_graph, 64, 0), (sparse_graph, 64, 5), (sparse_graph, 32, 0), (complete_graph, 64, 0),
    ):  # fmt: skip
        print(measured(given.clients, given.width, graph, bits, lost), flush=True)


if __name__ == "__main__":
    main()
