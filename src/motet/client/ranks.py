"""Ranks of predictions among a client's rows, which the area under a ROC curve is made of.

Knows arrays of numbers: clients, then rows, then columns. Does not know metrics or classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_EXACT = 5_000  # rows whose ranks add up to a whole number that a float32 can hold
_NEGATIVE = np.uint32(1 << 31)  # the sign of a float32


def rank_sums(values: Array, column: Array, live: Array) -> Array:
    """(clients, columns): the sum of the ranks, from 1, that rows have in their column (-1: in none) among the
    client's live rows; equal values have the mean of their ranks.

    Values are taken as float32. Sorted columns become one sorted list of whole numbers, in which all rows are
    looked up at once: 32 bits of the value below the number of its column.
    """
    clients, rows, many = values.shape
    columns = np.swapaxes(values, 1, 2).astype(np.float32, order="C")
    if not live.all():
        columns = np.where(live[:, None], columns, np.float32(np.inf))
    columns = columns.reshape(clients * many, rows)
    at = live & (column >= 0)
    client, row = np.nonzero(at)
    place = client * many + column[at]
    if (found := _rank_sums_without_ties(columns, place, row)) is not None:
        return found.reshape(clients, many)
    ascending = _keys(np.sort(columns, -1), np.arange(clients * many)[:, None]).ravel()
    own = _keys(columns[place, row], place)
    upto = np.searchsorted(ascending, own, "right")
    tied = (ascending[upto - 2] == own) & (upto > 1)  # else there is one of each
    below = np.searchsorted(ascending, own, "left") if tied.any() else upto - 1
    ranks = (below + upto + 1) / 2 - place * rows
    return np.bincount(place, ranks, clients * many).reshape(clients, many)


def _rank_sums_without_ties(columns: Array, place: Array, row: Array) -> Array | None:
    """Sums of ranks of the rows `row` of the columns `place`, by one sort; None where values are negative, or one that
    counts equals one that does not. A number's last bit says whether it counts, the others are those of the value."""
    bits = columns.view(np.uint32)
    if bits.max(initial=0) >= _NEGATIVE:
        return None
    bits = bits << np.uint32(1)
    bits[place, row] |= 1
    bits.sort(-1)
    one_after_another = (
        bits.ravel()
    )  # a last and a first value may look tied, which costs time and nothing else
    if (one_after_another[1:] ^ one_after_another[:-1] == 1).any():
        return None
    bits &= np.uint32(1)
    exact = np.float32 if bits.shape[1] < _EXACT else np.float64
    ranks: Array = np.einsum("cr,r->c", bits.astype(exact), np.arange(1, bits.shape[1] + 1, dtype=exact))
    return ranks


def weight_sums(values: Array, column: Array, weights: Array) -> Array:
    """As `rank_sums`, for rows with weights: in place of its rank, a row has the weight of all rows below it and half
    of the weight of all that are equal to it, itself among them; times its own weight."""
    found = np.zeros((len(values), values.shape[2]))
    for client, (of_rows, mine, w) in enumerate(zip(values.astype(np.float32), column, weights, strict=True)):
        at = w > 0
        for k in range(found.shape[1]):
            _, place = np.unique(of_rows[at, k], return_inverse=True)
            equal = np.bincount(place, w[at].astype(np.float64))
            below = np.cumsum(equal) - equal
            found[client, k] = (w[at] * (below + equal / 2)[place])[mine[at] == k].sum()
    return found


def _keys(values: Array, number: Array) -> Array:
    """Whole numbers in the order of (number, value)."""
    bits = (values + np.float32(0)).view(np.int32)  # there is one zero
    signed = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) if bits.min(initial=0) < 0 else bits
    return np.asarray(signed + (number << 32))
