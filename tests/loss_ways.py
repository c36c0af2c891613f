"""Ways to count rows: every loss of `net.loss` by its name, one of a user's own, weights of classes and of rows.

Each is a task and a federation made of those that all tests share (conftest.py): the same examples, with targets of
the kind that the loss is for. A loss is among them because it is in LOSSES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from motet.client import Batch, ClientData, Task
from motet.client.losses import LOSSES, Criterion

OFFSET = 1.5  # what is added to standardised numbers, so that most of them are counts above 0


def huber(z: Tensor, y: Tensor) -> Tensor:
    """A loss of a user's own."""
    return nn.functional.huber_loss(z, y, reduction="none")


OTHERS = {
    "own": "numbers",
    "class_weights": "classes",
    "row_weights": "classes",
    "row_weights_own": "numbers",
}
WAYS_TO_COUNT: dict[str, str] = LOSSES | OTHERS  # the kind of target of each


def criterion_of(way: str) -> Criterion:
    if way in ("own", "row_weights_own"):
        return Criterion("loss_ways:huber", own=huber)
    if way == "class_weights":
        return Criterion("cross_entropy", (0.5, 1.0, 2.0))
    return Criterion(way if way in LOSSES else "cross_entropy", level=0.8, offset=OFFSET)


def task_of(way: str, features: int, classes: int) -> Task:
    kind = WAYS_TO_COUNT[way]
    outputs = classes if kind == "classes" else 1
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, outputs))
    return Task(net, kind, outputs, criterion=criterion_of(way))  # type: ignore[arg-type]


def clients_of(way: str, clients: Mapping[str, ClientData]) -> dict[str, ClientData]:
    kind = WAYS_TO_COUNT[way]
    found = {c: with_targets(d, kind) for c, d in clients.items()}
    return {c: with_weights(d) for c, d in found.items()} if way.startswith("row_weights") else found


def with_targets(held: ClientData, kind: str) -> ClientData:
    parts = {p: getattr(held, p).take() for p in ("train", "val", "test")}
    return replace(held, **{p: Batch(b.x, target(b, kind), b.live) for p, b in parts.items()})


def target(rows: Batch, kind: str) -> Tensor:
    if kind == "classes":
        return rows.y
    number = rows.x[:, 0] / 2 - rows.x[:, 1].tanh()
    if kind == "numbers":
        return number
    return torch.where(rows.y > 0, 1.0, -1.0) * number.exp()  # times; a third of them is censored


def with_weights(held: ClientData) -> ClientData:
    """The same rows with weights from 0.1 to about 20, uneven in every part and between clients."""
    parts = {p: getattr(held, p).take() for p in ("train", "val", "test")}
    weighed = {
        p: Batch(b.x, b.y, 0.1 + (b.x[:, 2] + len(parts["train"]) / 30).exp()) for p, b in parts.items()
    }
    return replace(held, **weighed, weighted=True)
