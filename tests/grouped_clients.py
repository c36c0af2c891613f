"""What tests of grouped training share: clients of different kinds, a small network, and rounds of some clients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import Turn
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.methods.fedperc import FedPerC
from motet.methods.pfa import PFA

ENGINES = [Loop, Vmap, partial(Threads, workers=2)]
engines = pytest.mark.parametrize("engine", ENGINES, ids=["loop", "vmap", "threads"])
both = pytest.mark.parametrize("method", [PFA, FedPerC])
# Verbs of grouping are the same functions for both methods; only FedPerC's clients keep something.
engines_and_both = pytest.mark.parametrize(
    ("engine", "method"),
    [(Loop, PFA), *((engine, FedPerC) for engine in ENGINES)],
    ids=["loop-PFA", "loop-FedPerC", "vmap-FedPerC", "threads-FedPerC"],
)


def three_layers(**how: Any) -> Task:
    torch.manual_seed(3)
    layers = [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)]
    return Task(nn.Sequential(*layers), "classes", 3, **how)


def kinds(each: int = 4, kinds: int = 3) -> tuple[dict[str, ClientData], list[int]]:
    """Clients of clearly different kinds: each kind's examples lie in a direction of its own."""
    g = torch.Generator().manual_seed(0)

    def some(kind: int, many: int) -> Batch:
        x = 0.3 * torch.randn(many, 6, generator=g)
        x[:, 2 * kind : 2 * kind + 2] += 2
        return Batch.of(x, torch.randint(0, 3, (many,), generator=g))

    truth = [i % kinds for i in range(each * kinds)]
    return {
        f"c{i:02}": ClientData(some(k, 20 + i), some(k, 5), some(k, 5)) for i, k in enumerate(truth)
    }, truth


def opposites() -> tuple[dict[str, ClientData], list[int]]:
    """Clients whose examples look alike, half of whom call yes what the others call no."""
    g = torch.Generator().manual_seed(0)

    def some(flip: int, many: int) -> Batch:
        x = torch.randn(many, 6, generator=g)
        return Batch.of(x, (x[:, 0] > 0).long() ^ flip)

    truth = [i % 2 for i in range(8)]
    return {f"c{i}": ClientData(some(k, 40), some(k, 20), some(k, 5)) for i, k in enumerate(truth)}, truth


def few(engine: Any, number: int, clients: list[str]) -> Turn:
    return Turn(number, clients, engine.clients, seed_of(0, number))
