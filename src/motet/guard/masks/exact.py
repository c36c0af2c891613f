"""Exact sums of numbers of any size: each number as eight whole numbers below 2^24, which are summed apart.

Sums of a column may be 0.001 or a billion, and fixed-point numbers of one range would round the small ones away. So a
number x becomes round(x 2^96), and that its eight digits to the base 2^24, each with the sign of x. Digits are summed
under masks, all replies weigh the same, and no sum of digits is rounded. The sum of n numbers is off by at most
n 2^-97: half a step for each of them.
Knows numbers. Does not know masks, nor what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from motet.guard.masks.fixed_point import FixedPoint, Words
from motet.guard.masks.refused import MaskRefused

DIGITS, BITS, STEPS = 8, 24, 96  # digits of a number, bits of a digit, bits behind the point
RANGE, WIDTH = float(1 << BITS), 64  # of the digits, as fixed-point numbers


def digits_of(numbers: Sequence[Fraction | float]) -> Words:
    """(numbers * 8,) digits, the lowest one first.

    >>> digits_of([-3.0])[4:6].tolist(), exact_sums(2 * digits_of([-3.0, 0.1])) == [-6, Fraction(2 * 0.1)]
    ([-3.0, 0.0], True)
    """
    found = np.zeros(len(numbers) * DIGITS)
    for i, x in enumerate(numbers):
        try:
            whole = round(Fraction(x) * (1 << STEPS))
        except (OverflowError, ValueError):
            raise MaskRefused(f"a number of an exact sum is {x}, and must be finite") from None
        if abs(whole) >= 1 << (DIGITS * BITS):
            raise MaskRefused(f"a number of an exact sum is {float(x):.3g}; it must be below 2^{STEPS}")
        sign, rest = (-1 if whole < 0 else 1), abs(whole)
        for k in range(DIGITS):
            found[i * DIGITS + k] = sign * ((rest >> (BITS * k)) & ((1 << BITS) - 1))
    return found


def exact_sums(digits: Words) -> list[Fraction]:
    """The sums that sums of digits stand for."""
    rows = digits.reshape(-1, DIGITS)
    return [
        Fraction(sum(int(d) << (BITS * k) for k, d in enumerate(row)), 1 << STEPS) for row in rows.tolist()
    ]


def digit_sums(numbers: FixedPoint, total: Words) -> Words:
    """The sums of digits in an unmasked total, whose last number is how many replies are in it."""
    signed = total.view(np.int64).astype(np.float64)  # exact: fewer than 53 bits of each are in use
    return np.asarray(np.rint(signed[:-1] * 2.0**-numbers.fraction))


def digit_terms(clients: int) -> FixedPoint:
    """How clients write digits."""
    return FixedPoint(max(clients, 1), WIDTH, RANGE)
