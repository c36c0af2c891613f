"""Noise of a site's own, for losses and sketches: only whoever has the site's key can take it off.

The key comes from the system's generator. The same letter gets the same noise, so that nothing is won by asking again.
Knows a key and shapes. Does not know what the noise is added to.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor


def laplace_noise(key: bytes, letter: str, scale: float) -> Callable[[Sequence[int]], Tensor]:
    """Draws from Laplace's distribution with this scale, for any shapes; one after another for one letter."""
    numbers = count()

    def draw(shape: Sequence[int]) -> Tensor:
        many = math.prod(shape)
        seed = hmac.digest(key, f"noise {letter} {next(numbers)}".encode(), "sha256")
        bits = np.frombuffer(hashlib.shake_256(seed).digest(8 * many), np.uint64) >> np.uint64(11)
        u = (bits.astype(np.float64) + 0.5) * 2.0**-53  # in (0, 1)
        drawn = np.sign(0.5 - u) * np.log(2 * np.minimum(u, 1 - u))
        return torch.from_numpy(scale * drawn).reshape(tuple(shape))

    return draw
