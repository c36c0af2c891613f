"""What tests of methods share: one number to learn, two clients that disagree, and rounds of all clients.

Client a has one example (1, 3): slope of (w - 3)^2 is 2 (w - 3). Client b has three examples (2, 0): slope of
(2 w)^2 is 8 w. The number starts at 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from motet.client import Batch, ClientData, Task, seed_of
from motet.core import Turn
from motet.engines.driver import play, start
from motet.vec import Vec


def one_number() -> Task:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    return Task(net, "numbers", 1)


def client_data(*pairs: tuple[float, float]) -> ClientData:
    x, y = torch.tensor([[p[0]] for p in pairs]), torch.tensor([p[1] for p in pairs])
    return ClientData(Batch.of(x, y), Batch.of(x, y), Batch.of(x, y))


TWO = {"a": client_data((1.0, 3.0)), "b": client_data((2.0, 0.0), (2.0, 0.0), (2.0, 0.0))}


def server_examples(many: int = 8) -> Batch:
    """Some that the server itself holds, of the federation in conftest.py: six features, three classes."""
    x = torch.linspace(-2, 2, many * 6).reshape(6, many).T.cos()
    return Batch.of(x, torch.arange(many) % 3)


def turn(engine: Any, number: int, proxy: Batch | None = None) -> Turn:
    return Turn(number, engine.clients, engine.clients, seed_of(0, number), proxy)


def after(method: Any, engine: Any, rounds: int, proxy: Batch | None = None) -> Any:
    """The server's state after some rounds."""
    state = start(engine, method, turn(engine, -1, proxy))
    for t in range(rounds):
        state = play(engine, method, state, turn(engine, t, proxy))
    return state


def apart(a: Vec, b: Vec) -> float:
    return float((a - b).sq().sqrt())
