"""A loss without a gradient."""

from __future__ import annotations

from torch import Tensor


def one_minus_auc(scores: Tensor, y: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative example that stand in the wrong order; nan if there is none."""
    z = scores[:, 1] - scores[:, 0]
    gap = z[y == 1][:, None] - z[y == 0]
    return (gap < 0).double().mean() + (gap == 0).double().mean() / 2
