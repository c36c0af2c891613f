"""What goes to processes of one's own cluster comes back with every number, shape and layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from motet.engines.owned_objects import packed, unpacked


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.5).expand(1),  # one number with a stride of 0
        torch.tensor([2.5]).expand(1, 1, 1),
        torch.tensor(2.5).expand(3),
        torch.tensor([[1.0], [2.0]]).expand(2, 4),
        torch.tensor(7),
        torch.arange(12.0).reshape(3, 4)[:, 1],
        torch.arange(12.0).reshape(3, 4)[1:2, 2:3],
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.float64),
        torch.arange(5, dtype=torch.float64)[::2],
    ],
    ids=lambda t: f"{tuple(t.shape)} {t.stride()}",
)
def test_a_tensor_of_any_layout_comes_back(tensor: Tensor) -> None:
    back = unpacked(packed({"a": tensor, "again": tensor}))
    assert back["a"] is back["again"]
    assert back["a"].dtype == tensor.dtype and back["a"].shape == tensor.shape
    assert torch.equal(back["a"].nan_to_num(9), tensor.nan_to_num(9))
    if tensor.ndim == 4:
        assert back["a"].stride() == tensor.stride()


@pytest.mark.parametrize("first", range(5))
def test_rows_in_the_middle_of_others_are_computed_with_to_the_bit(first: int) -> None:
    """Products of matrices may round otherwise where numbers lie at another place in a line of memory: clients' rows
    are slices of one block here, and arrive alone at a machine of a cluster."""
    g = torch.Generator().manual_seed(0)
    rows, weights = torch.randn(20, 7, generator=g), torch.randn(5, 7, generator=g)
    mine = rows[first : first + 13]
    back = unpacked(packed(mine))
    assert back.data_ptr() % 64 == mine.data_ptr() % 64
    assert torch.equal(torch.nn.functional.linear(back, weights), torch.nn.functional.linear(mine, weights))
