"""Images shifted and mirrored at random, where the randomness is arithmetic: pad by four, crop, flip.

Knows images and hashes. Does not know training.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PAD = 4


def shift_and_flip(x: Tensor, dice: Tensor) -> Tensor:
    """Images (n, c, h, w), each shifted by up to four pixels either way, with black coming in, and
    every second one mirrored; `dice` are n whole numbers below 2**62."""
    high, wide = x.shape[2:]
    down, right = (((dice >> bits) & 0xFFFFF) % (2 * _PAD + 1) - _PAD for bits in (0, 20))
    mirrored = (dice >> 40) & 1 == 1
    across = torch.arange(wide)
    row = torch.arange(high) + down[:, None]  # (n, h): where each pixel comes from
    column = torch.where(mirrored[:, None], wide - 1 - across, across) + right[:, None]  # (n, w)
    there = ((row >= 0) & (row < high))[:, :, None] & ((column >= 0) & (column < wide))[:, None, :]
    image = torch.arange(len(x))[:, None, None]
    row, column = row.clamp(0, high - 1)[:, :, None], column.clamp(0, wide - 1)[:, None, :]
    moved = x.permute(0, 2, 3, 1)[image, row, column] * there[..., None]
    return moved.permute(0, 3, 1, 2)
