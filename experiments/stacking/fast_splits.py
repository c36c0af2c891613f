"""Cuts of the nodes of scikit-learn's trees: which columns are tried, in which order, and which cut is the best.

Knows rows as numbers of their values, with two classes. Does not know trees. Needs numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]
NEAR = np.float32(1e-7)  # values that are this near are one value to scikit-learn
compiled = njit(cache=True, nogil=True)


@compiled
def drawn(state: np.uint32, low: int, high: int) -> tuple[np.uint32, int]:
    """The next state of the generator (xorshift), and a whole number from low on, below high."""
    if state == 0:
        state = np.uint32(1)
    state ^= np.uint32(state << np.uint32(13))
    state ^= np.uint32(state >> np.uint32(17))
    state ^= np.uint32(state << np.uint32(5))
    return state, low + np.int64((state & np.uint32(0x7FFFFFFF)) % np.uint32(high - low))


@compiled
def gini(zeros: float, ones: float) -> float:
    total = zeros + ones
    return 1.0 - (zeros * zeros + ones * ones) / (total * total)


@compiled
def worth(zeros: float, ones: float, all_zeros: float, all_ones: float) -> float:
    """How good a cut is that leaves so many rows of both classes on the left; rounded as scikit-learn rounds it."""
    zeros_right, ones_right = all_zeros - zeros, all_ones - ones
    right = -(zeros_right + ones_right) * gini(zeros_right, ones_right)
    return right - (zeros + ones) * gini(zeros, ones)


@compiled
def cut_by_counts(
    count: Array,
    low: int,
    high: int,
    values: Array,
    first: int,
    zeros_all: float,
    ones_all: float,
    best: float,
) -> tuple[float, int, int]:
    """The best cut of one column that is better than `best`: its worth, and the numbers on both sides of it.

    `count` (numbers, 2) has each value's rows of both classes in this node, between the numbers low and high.
    """
    zeros, ones = float(count[low, 0]), float(count[low, 1])
    before, last, after = low, -1, -1
    for k in range(low + 1, high + 1):
        if count[k, 0] + count[k, 1] == 0:
            continue
        if values[first + k] > np.float32(values[first + before] + NEAR):
            found = worth(zeros, ones, zeros_all, ones_all)
            if found > best:
                best, last, after = found, before, k
        zeros += count[k, 0]
        ones += count[k, 1]
        before = k
    return best, last, after


@compiled
def cut_by_keys(
    keys: Array, many: int, values: Array, first: int, zeros_all: float, ones_all: float, best: float
) -> tuple[float, int, int]:
    """The same from keys, number * 4096 + rows of this kind * 2 + class: for few rows with many values."""
    in_order(keys, many)
    zeros, ones, before, last, after = 0.0, 0.0, keys[0] >> 12, -1, -1
    for p in range(many):
        k, times, one = keys[p] >> 12, (keys[p] & 4095) >> 1, keys[p] & 1
        if values[first + k] > np.float32(values[first + before] + NEAR):
            found = worth(zeros, ones, zeros_all, ones_all)
            if found > best:
                best, last, after = found, before, k
        zeros += times * (1 - one)
        ones += times * one
        before = k
    return best, last, after


@compiled
def extremes(codes: Array, c: int, rows: Array, a: int, b: int) -> tuple[int, int]:
    """The lowest and the highest number of a column in the node rows[a:b]."""
    low = high = codes[c, rows[a]]
    for p in range(a + 1, b):
        k = codes[c, rows[p]]
        low, high = min(low, k), max(high, k)
    return np.int64(low), np.int64(high)


@compiled
def upper(codes: Array, c: int, high: int, rows: Array, kinds: Array, a: int, b: int) -> tuple[float, float]:
    """Rows of both classes that have the higher one of two values."""
    every, ones = 0, 0
    for p in range(a, b):
        times = (kinds[p] >> 1) * (codes[c, rows[p]] == high)
        every += times
        ones += times * (kinds[p] & 1)
    return float(every - ones), float(ones)


@compiled
def in_order(keys: Array, many: int) -> None:
    """Sorts the first keys in place, a few by insertion, more of them by quicksort."""
    if many > 48:
        keys[:many].sort()
        return
    for p in range(1, many):
        key, q = keys[p], p
        while q > 0 and keys[q - 1] > key:
            keys[q] = keys[q - 1]
            q -= 1
        keys[q] = key


@compiled
def best_of_column(
    codes: Array,
    values: Array,
    start: Array,
    c: int,
    rows: Array,
    a: int,
    b: int,
    kinds: Array,
    zeros: float,
    ones: float,
    low: int,
    high: int,
    count: Array,
    keys: Array,
    best: float,
) -> tuple[float, int, int]:
    """The best cut of column c for the node rows[a:b] that is better than `best`: its worth, numbers on both sides."""
    if high - low == 1:
        upper0, upper1 = upper(codes, c, high, rows, kinds, a, b)
        return worth(zeros - upper0, ones - upper1, zeros, ones), low, high
    if high - low <= 2 * (b - a):
        for k in range(low, high + 1):
            count[k, 0] = count[k, 1] = 0
        for p in range(a, b):
            count[codes[c, rows[p]], kinds[p] & 1] += kinds[p] >> 1
        return cut_by_counts(count, low, high, values, start[c], zeros, ones, best)
    for p in range(a, b):
        keys[p - a] = np.int64(codes[c, rows[p]]) * 4096 + kinds[p]
    return cut_by_keys(keys, b - a, values, start[c], zeros, ones, best)


@compiled
def split_node(
    codes: Array,
    values: Array,
    start: Array,
    rows: Array,
    a: int,
    b: int,
    kinds: Array,
    zeros: float,
    ones: float,
    columns: Array,
    constant: Array,
    known: int,
    width: int,
    state: np.uint32,
    count: Array,
    keys: Array,
) -> tuple[int, int, int, int, np.uint32]:
    """The best cut of the node rows[a:b]: column, numbers on both sides, how many columns are constant, state.

    `columns` is a permutation that goes from node to node; constant columns stand in front and are not tried again.
    """
    left, tried, found, passed = len(columns), 0, 0, 0
    best, column, last, after = -np.inf, -1, -1, -1
    while left > known + found and (tried < width or tried <= found + passed):
        tried += 1
        state, j = drawn(state, passed, left - found)
        if j < known:
            columns[passed], columns[j] = columns[j], columns[passed]
            passed += 1
            continue
        j += found
        c = columns[j]
        low, high = extremes(codes, c, rows, a, b)
        if values[start[c] + high] <= np.float32(values[start[c] + low] + NEAR):
            columns[j], columns[known + found] = columns[known + found], columns[j]
            found += 1
            continue
        left -= 1
        columns[left], columns[j] = columns[j], columns[left]
        better, at, then = best_of_column(
            codes, values, start, c, rows, a, b, kinds, zeros, ones, low, high, count, keys, best
        )
        if better > best:
            best, column, last, after = better, c, at, then
    columns[:known] = constant[:known]
    constant[known : known + found] = columns[known : known + found]
    return column, last, after, known + found, state
