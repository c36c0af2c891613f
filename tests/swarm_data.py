"""What tests of swarms share: a line and classes to learn, divided among clients, and linear networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from motet.client import Batch, ClientData, Data, Task
from motet.vec import leaves


def one_client(x: Tensor, y: Tensor) -> ClientData:
    return ClientData(Batch.of(x, y), Batch.of(x[:0], y[:0]), Batch.of(x[:0], y[:0]))


def divided(x: Tensor, y: Tensor, owner: Tensor) -> dict[str, ClientData]:
    return {f"c{int(o)}": one_client(x[owner == o], y[owner == o]) for o in owner.unique()}


def linear(features: int, outputs: int, kind: Any = "numbers") -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(features, outputs)), kind, outputs)


def line(many: int = 60, features: int = 4) -> tuple[Tensor, Tensor]:
    """A straight line with some noise around it."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(many, features, generator=g)
    y = x @ torch.arange(1.0, features + 1) + 0.5 + 0.3 * torch.randn(many, generator=g)
    return x, y


def two_classes() -> tuple[Tensor, Tensor]:
    x, y = line(120)
    return x, (y > 0.5).long()


def three_classes(many: int = 60) -> tuple[Tensor, Tensor]:
    x, y = line(many)
    return x, (y > -2).long() + (y > 2).long()


def data_of(x: Tensor, y: Tensor, padding: int = 0) -> Data:
    wide = torch.cat([x, torch.zeros(padding, *x.shape[1:])]), torch.cat([y, y.new_zeros(padding)])
    return Data(*wide, torch.tensor(len(x)), torch.tensor(1), Batch.of(x[:0], y[:0]))


def same(a: Any, b: Any) -> float:
    return max(
        float((p.double() - q.double()).abs().max()) for p, q in zip(leaves(a), leaves(b), strict=True)
    )
