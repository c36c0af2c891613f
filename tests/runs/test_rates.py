"""Rates that a recipe leaves open: a curvature is measured once for all that start alike, and never for another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from motet.client import Batch, Task
from motet.runs import rates


def rows(of: float = 1.0) -> list[Batch]:
    x = torch.arange(12.0).reshape(4, 3) * of
    return [Batch.of(x, torch.tensor([0, 1, 0, 1]))]


def net(seed: int = 0, layer: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), layer or nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(rates, "_measured", {})
    seen: list[float] = []
    usual = rates.largest_curvature
    monkeypatch.setattr(rates, "largest_curvature", lambda *given: seen.append(usual(*given)) or seen[-1])
    return seen


def test_methods_that_start_alike_measure_once(measured: list[float]) -> None:
    first, again = (rates.known_curvature(Task(net(), "classes", 2), rows()) for _ in range(2))
    assert first == again and len(measured) == 1


@pytest.mark.parametrize(
    ("task", "batches"),
    [
        (Task(net(1), "classes", 2), rows()),
        (Task(net(0, nn.Tanh()), "classes", 2), rows()),
        (Task(net(), "classes", 2), rows(2.0)),
    ],
)
def test_other_weights_layers_or_rows_are_measured_anew(
    task: Task, batches: list[Batch], measured: list[float]
) -> None:
    rates.known_curvature(Task(net(), "classes", 2), rows())
    rates.known_curvature(task, batches)
    assert len(measured) == 2


class Own(nn.Module):
    """Looks the same whatever `power` is."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power, self.last = power, nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x**self.power)
        return out


def test_a_network_of_ones_own_code_is_always_measured(measured: list[float]) -> None:
    for power in (1, 2):
        torch.manual_seed(0)
        rates.known_curvature(Task(Own(power), "classes", 2), rows())
    assert len(measured) == 2 and measured[0] != measured[1]
