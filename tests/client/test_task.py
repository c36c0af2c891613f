"""Tasks: what is refused, how predictions are scored."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from motet.client import Task


def test_batch_statistics_without_a_policy_are_refused_with_a_reason() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(
        ValueError,
        match="(?s)BatchNorm1d.*whose statistics it uses, is not set.*hint: .*averaged, local, shared",
    ):
        Task(net, "classes", 2)


def test_the_head_is_the_last_layer() -> None:
    task = Task(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), "classes", 2)
    assert task.head == ("2.weight", "2.bias")
    assert task.body == ("0.weight", "0.bias")


def test_group_norm_is_shared_like_any_other_parameter() -> None:
    task = Task(nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)), "classes", 2)
    assert {"1.weight", "1.bias"} <= set(task.w0)


def test_layers_that_share_weights_get_the_same_ones() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.head.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.first(x))

    task = Task(Tied(), "classes", 3)
    doubled = task.w0.map(lambda a, _: 2 * torch.eye(3))
    assert list(task.w0) == ["first.weight"]
    assert torch.equal(task.predict(doubled, torch.eye(3)), 4 * torch.eye(3))


def test_a_network_is_left_as_it_was() -> None:
    net = nn.Linear(2, 2)
    task = Task(net, "classes", 2)
    before = {k: p.clone() for k, p in net.named_parameters()}
    task.predict(task.w0.zeros(), torch.ones(1, 2))
    assert all(torch.equal(before[k], p) for k, p in net.named_parameters())


def test_regression_is_scored_in_the_targets_own_unit() -> None:
    task = Task(nn.Linear(1, 1), "numbers", 1, scale=10.0)
    y, scores = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 1.0])
    found = task.measured(["a"], scores[None], y[None], torch.ones(1, 3))
    assert found["rmse"][0] == pytest.approx((100 / 3) ** 0.5)
    assert found["mae"][0] == pytest.approx(10 / 3)
    assert found["r2"][0] == pytest.approx(0.5)
