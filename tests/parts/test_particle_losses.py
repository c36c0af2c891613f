"""Losses of particles: fast ways are equal to slow ones, and to sums by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from motet.methods.swarm import Swarm
from motet.parts import particle_losses as losses
from swarm_data import data_of, line, linear, three_classes


@pytest.mark.parametrize("many", [3, 60])  # fewer examples than numbers, and more
def test_the_root_of_the_gram_matrix_gives_the_same_losses(many: int) -> None:
    x, y = line()
    task, data = linear(4, 1), data_of(x[:many], y[:many], padding=2)
    theta = torch.linspace(-3, 3, 2 * 7 * 5, dtype=torch.float64).reshape(2, 7, 5)
    quick = losses.squared_errors(losses.gram_root(task, data), theta)
    assert torch.allclose(quick, losses.mean_losses(task, theta, data), rtol=1e-12)
    by_hand = ((x[:many].double() @ theta[1, 2, :4] + theta[1, 2, 4] - y[:many]) ** 2).mean()
    assert float(quick[1, 2]) == pytest.approx(float(by_hand), rel=1e-12)


def test_losses_of_a_linear_network_are_those_of_any_network() -> None:
    x, y = three_classes()
    plain, other = linear(4, 3, "classes"), linear(4, 3, "classes")
    other.net.append(nn.Identity())  # no longer known to be linear
    theta = torch.linspace(-3, 3, 7 * 15, dtype=torch.float64).reshape(1, 7, 15)
    a, b = (losses.mean_losses(t, theta, data_of(x, y)) for t in (plain, other))
    assert torch.allclose(a, b, rtol=1e-12) and not losses.is_linear(other)


def test_one_vs_all_is_a_logistic_loss_for_each_class_that_does_not_overflow() -> None:
    x, y = three_classes()
    task, data = linear(4, 3, "classes"), data_of(x, y)
    theta = torch.linspace(-3, 3, 3 * 2 * 5, dtype=torch.float64).reshape(3, 2, 5)
    loss = losses.mean_losses(task, theta, data, "one_vs_all")
    z = x.double() @ theta[2, 1, :4] + theta[2, 1, 4]
    by_hand = nn.functional.binary_cross_entropy_with_logits(z, (y == 2).double())
    assert float(loss[2, 1]) == pytest.approx(float(by_hand), rel=1e-12)
    assert losses.mean_losses(task, 1e30 * theta, data, "one_vs_all").isfinite().all()
    assert torch.allclose(losses.mean_losses(task, theta, data, "published"), loss, atol=0.3)


def test_noise_is_laplaces_and_its_scale_is_that_of_one_example() -> None:
    data = data_of(*line())
    drawn = losses.laplace(data, torch.tensor(3), torch.Size([200, 500]))
    assert float(drawn.mean()) == pytest.approx(0, abs=0.02)
    assert float(drawn.abs().mean()) == pytest.approx(1, abs=0.02)
    assert float(drawn.square().mean()) == pytest.approx(2, abs=0.05)
    method = Swarm(linear(4, 1), epsilon=0.5, clip=6.0)
    theta = torch.zeros(1, 20_000, 5, dtype=torch.float64)
    quiet = losses.mean_losses(method.task, theta, data, clip=6.0)
    assert float(quiet.max()) <= 6
    reply, _ = method.loss_of_particles({"theta": theta, "epoch": torch.tensor(0)}, (), data)
    assert float((reply[0] - quiet).abs().mean()) == pytest.approx(6 / 60 / 0.5, rel=0.05)


def test_the_fast_way_to_squared_errors_flags_what_is_not_finite_as_the_slow_way_does() -> None:
    root = losses.gram_root(linear(4, 1), data_of(*line()))
    theta = torch.linspace(-3, 3, 2 * 7 * 5, dtype=torch.float64).reshape(2, 7, 5)
    theta[1, 2] = 1e200
    fast = losses.flagged_squared_errors(root, theta)
    assert torch.allclose(fast, losses.flagged(losses.squared_errors(root, theta)), rtol=1e-12)
    assert fast[1].nonzero().tolist() == [[1, 2]] and float(fast[0, 1, 2]) == 0
    assert losses.flagged_squared_errors(root, theta[1:, 2:3])[0].isnan().all()  # no finite loss at all
