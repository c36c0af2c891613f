"""Where noise comes from: the system's generator, or a seed.

Only noise that nobody can draw again protects. A seed has the same draws for everyone who knows it, and torch's
generator takes 32 bits of a seed, which a patient person can try one by one; so noise that protects comes from
the system, number by number. Knows shapes. Does not know what the noise is added to.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_SUMMED = 4  # normal draws behind each: the last bits of a single one tell which uniform draw it was made of


class Chance(Protocol):
    """Draws of two distributions."""

    def uniform(self, many: int) -> Tensor:
        """(many,) between 0 and 1."""

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Of mean 0 and deviation 1."""


class SeededChance:
    """Draws that follow from a seed: a simulation can be repeated, and nobody is protected."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, many: int) -> Tensor:
        return torch.rand(many, generator=self.generator)

    def normal(self, shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, generator=self.generator)


class SystemChance:
    """Draws of the operating system's generator: nobody can draw them again."""

    def uniform(self, many: int) -> Tensor:
        return torch.from_numpy(self._uniform(many)).float()

    def normal(self, shape: Sequence[int]) -> Tensor:
        many = math.prod(shape)
        u, v = self._uniform(_SUMMED * many), self._uniform(_SUMMED * many)
        drawn = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)  # Box and Muller 1958
        summed = drawn.reshape(_SUMMED, many).sum(0) / math.sqrt(_SUMMED)
        return torch.from_numpy(summed).float().reshape(tuple(shape))

    def _uniform(self, many: int) -> np.ndarray:
        """In (0, 1), with 53 bits each."""
        bits = np.frombuffer(os.urandom(8 * many), np.uint64) >> np.uint64(11)
        return np.asarray((bits.astype(np.float64) + 0.5) * 2.0**-53)


def chance_of(seed: int | None) -> Chance:
    """The system's draws, unless there is a seed."""
    return SystemChance() if seed is None else SeededChance(seed)
