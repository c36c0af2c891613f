"""Numbers as whole numbers modulo 2^64 or 2^32, so that masks cancel to the last bit.

A reply x with weight a (its number of rows over the largest one, so 0 < a <= 1) becomes round(x a 2^f), and a itself
the last number. Of n replies whose numbers are at most `range` in size, no sum leaves the range of the integers. The
mean is then off by at most `bound`: half a step for each reply, and what double precision rounds.
Knows arrays. Does not know masks, nor clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from motet.guard.masks.refused import MaskRefused

MaskBits = Literal[64, 32]
_STEPS = {64: 1 << 20, 32: 1 << 10}  # between 0 and 1, fewest of a weighted reply at a site, by bits
Words = np.ndarray[Any, np.dtype[Any]]  # unsigned, of 8 or 4 bytes


@dataclass(frozen=True)
class FixedPoint:
    """How n clients write their numbers."""

    clients: int
    bits: int = 64  # 64 or 32
    range: float = 1024.0  # largest absolute value of a number in a reply

    @property
    def fraction(self) -> int:
        """Bits behind the point of a weighted number.

        >>> FixedPoint(50).fraction, FixedPoint(50, 32, 1.0).fraction
        (46, 24)
        """
        return self.bits - 2 - math.ceil(math.log2(self.clients * self.range))

    @property
    def weight_fraction(self) -> int:
        return self.bits - 2 - math.ceil(math.log2(self.clients))

    @property
    def dtype(self) -> Any:
        return np.dtype("<u8") if self.bits == 64 else np.dtype("<u4")

    def encoded(self, numbers: Words, weight: float) -> Words:
        """A reply's numbers times its weight, then the weight."""
        if not 0 < weight <= 1:
            raise MaskRefused(
                f"the weight of a reply is {weight:g} of the largest; it must be above 0 and at most 1"
            )
        flat = np.append(np.asarray(numbers, np.float64), 0.0)
        if not np.isfinite(flat).all():
            raise MaskRefused("the reply has numbers that are not finite, which no masked sum can hold")
        if (top := float(np.abs(flat).max())) > self.range:
            raise MaskRefused(
                f"the reply has a number as large as {top:.3g}, and masked sums hold numbers up to {self.range:g}\n"
                "hint: a larger guard.mask_range, or guard.clip"
            )
        flat *= weight * 2.0**self.fraction
        flat[-1] = weight * 2.0**self.weight_fraction
        signed = np.int64 if self.bits == 64 else np.int32
        words: Words = np.rint(flat, out=flat).astype(signed).view(self.dtype)
        return words

    def rounded_away(self, weight: float) -> str:
        """Why a reply of this weight has too few steps between 0 and 1; or "". If a server could have replies rounded
        away by numbers of its choice, it would see the others alone.

        >>> FixedPoint(3).rounded_away(0.001), FixedPoint(3, 32).rounded_away(0.001)[:25]
        ('', 'numbers up to 1024 in 32 ')
        """
        steps = weight * 2.0**self.fraction
        if steps >= _STEPS[self.bits] or weight <= 0:
            return ""
        return (
            f"numbers up to {self.range:g} in {self.bits} bits leave {steps:.3g} steps between 0 and 1 to a reply that "
            f"weighs {weight:.3g} of the largest, and {_STEPS[self.bits]:,} must be: it would be rounded away, and "
            "others be seen alone\nhint: guard.mask_bits=64, or a smaller guard.mask_range"
        )

    def mean(self, total: Words) -> Words:
        """The weighted mean that a sum of encoded replies stands for."""
        signed = total.view(np.int64 if self.bits == 64 else np.int32).astype(np.float64)
        weight = signed[-1] * 2.0**-self.weight_fraction
        if weight <= 0:
            raise MaskRefused("the masked sum has no weight: it was not unmasked by the right keys")
        found: Words = signed[:-1] * (2.0**-self.fraction / weight)
        return found

    def weight(self, total: Words) -> float:
        """The sum of all weights, in units of the largest."""
        signed = total[-1:].view(np.int64 if self.bits == 64 else np.int32)
        return float(signed[0]) * 2.0**-self.weight_fraction

    def bound(self, weights: Sequence[float]) -> float:
        """How far any number of the mean can be off, for replies of these weights (of the largest one)."""
        n, total = len(weights), math.fsum(weights)
        off = n * (2.0 ** -(self.fraction + 1) + self.range * 2.0**-51)
        off_weight = n * (2.0 ** -(self.weight_fraction + 1) + 2.0**-51)
        return (off + self.range * off_weight) / (total - off_weight)
