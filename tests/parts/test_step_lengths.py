"""Lengths of the server's step by hand."""

from __future__ import annotations

import pytest
import torch

from motet.parts import step_lengths
from motet.vec import Vec


def test_a_step_goes_from_the_model_through_the_mean_and_beyond() -> None:
    w, mean = Vec(a=torch.tensor([1.0, 2.0])), Vec(a=torch.tensor([3.0, 1.0]))
    assert step_lengths.stepped(w, mean, torch.tensor(1.0))["a"].tolist() == [3.0, 1.0]
    assert step_lengths.stepped(w, mean, torch.tensor(2.5))["a"].tolist() == [6.0, -0.5]


def test_a_longer_step_leaves_statistics_of_batchnorm_at_their_mean() -> None:
    w, mean = (Vec({"1.running_mean": torch.tensor(v), "1.weight": torch.tensor(v)}) for v in (1.0, 2.0))
    found = step_lengths.stepped(w, mean, torch.tensor(3.0))
    assert (found["1.running_mean"].item(), found["1.weight"].item()) == (2.0, 4.0)


def test_a_search_tries_lengths_in_equal_ratios_and_takes_the_best() -> None:
    tried: list[float] = []

    def reward(s: torch.Tensor) -> torch.Tensor:
        tried.append(float(s))
        return -((s - 4) ** 2)

    found = step_lengths.searched(reward, 8.0)
    assert tried == pytest.approx([8 ** (k / 7) for k in range(8)])
    assert found.item() == pytest.approx(8 ** (5 / 7))  # 4.42, and the one before it is 3.28
    assert step_lengths.searched(lambda s: -s, 8.0).item() == 1.0


def test_the_length_of_fedexp_by_hand() -> None:
    # d_1 = (2, 0), d_2 = (0, 2): squares 4 and 4, the mean (1, 1) has 2
    changes = Vec(a=torch.tensor([[2.0], [0.0]]), b=torch.tensor([[0.0], [2.0]]))
    equal = torch.tensor([0.5, 0.5]).double()
    assert step_lengths.extrapolated(changes, equal).item() == 1.0  # 8 / (4 * 2.001) is just below 1
    opposed = Vec(a=torch.tensor([[2.0], [-1.0]]))  # squares 4 and 1, the mean 0.5 has 0.25
    assert step_lengths.extrapolated(opposed, equal).item() == pytest.approx(5 / (4 * 0.251))
    some = torch.tensor([0.75, 0.25]).double()  # 3.25 on average; the mean 1.25 has 1.5625
    assert step_lengths.extrapolated(opposed, some).item() == pytest.approx(3.25 / (2 * 1.5635))


def test_statistics_of_batchnorm_do_not_count_in_the_length_of_fedexp() -> None:
    weights = Vec({"1.weight": torch.tensor([[2.0], [-1.0]])})
    both = Vec(dict(weights) | {"1.running_var": torch.tensor([[9.0], [9.0]])})
    equal = torch.tensor([0.5, 0.5]).double()
    assert step_lengths.extrapolated(both, equal) == step_lengths.extrapolated(weights, equal)
