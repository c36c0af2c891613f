"""The safe learning rate: curvatures computed by hand, and no step that diverges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from motet import nets
from motet.client import Batch, Task
from motet.client.curvature import curvature, safe_adam_rate, safe_rate
from motet.vec import Vec


def squares(w: Vec, batch: Batch) -> torch.Tensor:
    return batch.mean((batch.x @ w["a"] - batch.y) ** 2)


def test_the_curvature_of_squared_errors_is_twice_the_largest_eigenvalue() -> None:
    batch = Batch.of(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([1.0, 2.0]))
    assert curvature(squares, Vec(a=torch.zeros(2)), batch) == pytest.approx(9.0, rel=1e-3)  # 2 * (9 + 0) / 2


def test_the_rate_is_one_over_the_largest_curvature_with_the_penalty() -> None:
    flat, steep = (Batch.of(torch.tensor([[x]]), torch.ones(1)) for x in (1.0, 2.0))
    w = Vec(a=torch.zeros(1))
    assert safe_rate(squares, w, [flat, steep], 0.0) == pytest.approx(0.12)  # 1 / 8, two digits
    assert safe_rate(squares, w, [flat, steep], 2.0) == pytest.approx(0.1)


@pytest.mark.parametrize("rate", [safe_rate, safe_adam_rate])
def test_attention_by_torchs_quick_kernel_has_a_curvature_too(rate: Callable[..., float]) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    task, batch = Task(Attention(), "classes", 3), Batch.of(torch.randn(4, 5, 8), torch.arange(4) % 3)
    assert 1e-6 < rate(task.loss, task.w0, [batch], 0.0) < 1.0


def test_a_rate_has_bounds() -> None:
    w, still = Vec(a=torch.zeros(1)), Batch.of(torch.zeros(1, 1), torch.ones(1))
    assert safe_rate(squares, w, [still], 0.0) == 1.0
    assert safe_rate(squares, w, [], 0.0) == 1.0
    huge = Batch.of(torch.full((1, 1), 1e30), torch.ones(1))
    assert safe_rate(squares, w, [huge], 0.0) == 1e-6


def test_a_step_of_adam_adds_a_hundredth_of_the_loss_by_curvature() -> None:
    # At a = 0 the loss of (x a - 1)^2 is 1, and s'Hs is 2 x^2 for s = 1: rate^2 2 x^2 / 2 = 0.01, so rate = 0.1 / x.
    w = Vec(a=torch.zeros(1))
    flat, steep = (Batch.of(torch.tensor([[x]]), torch.ones(1)) for x in (20.0, 50.0))
    assert safe_adam_rate(squares, w, [flat], 0.0) == pytest.approx(0.005)
    assert safe_adam_rate(squares, w, [flat, steep], 0.0) == pytest.approx(0.002)
    assert safe_adam_rate(squares, w, [flat], 2400.0) == pytest.approx(
        0.0025
    )  # 800 + 2400 is four times the bend


def test_a_rate_of_adam_has_bounds() -> None:
    w, still = Vec(a=torch.zeros(1)), Batch.of(torch.zeros(1, 1), torch.ones(1))
    assert safe_adam_rate(squares, w, [still], 0.0) == safe_adam_rate(squares, w, [], 0.0) == 0.01
    huge = Batch.of(torch.full((1, 1), 1e30), torch.ones(1))
    assert safe_adam_rate(squares, w, [huge], 0.0) == 1e-6


@pytest.mark.parametrize("name", ["cnn", "vgg11", "resnet18", "lstm"])
def test_every_kind_of_network_has_a_curvature(name: str) -> None:
    text = name == "lstm"
    x = torch.arange(48).reshape(4, 12).to(torch.uint8) if text else torch.randn(4, 3, 32, 32)
    task = Task(nets.build(name, {}, tuple(x.shape[1:]), 80, "classes", 0), "classes", 80)
    before = {k: v.clone() for k, v in task.w0.items()}
    rate = safe_rate(task.loss, task.w0, [Batch.of(x, torch.arange(4))], 0.0)
    assert 1e-6 < rate <= 1.0
    assert 1e-6 < safe_adam_rate(task.loss, task.w0, [Batch.of(x, torch.arange(4))], 0.0) <= 0.01
    assert all(torch.equal(before[k], v) for k, v in task.w0.items())  # BatchNorm's statistics too
