"""Means that a minority of broken or hostile replies cannot move far: rows of numbers to one row.

What weights mean: rows of weight 0 take no part. The median and Krum count every other row once, whatever
its weight, because a number of examples is only what the client claims. The trimmed mean cuts a number of
rows and weights what is left, so that without trimming it is the plain mean; what is left lies between
honest values, and so does any weighted mean of it.

None of them depends on the order of the rows, in any bit: ties are broken by what is in the rows.
Shares are rounded up to whole rows. Knows rows. Does not know clients, trees or files.
"""

from __future__ import annotations

import math
from collections import Counter

import torch
from torch import Tensor

from motet.core import NoReply
from motet.guard.reply_rows import ReplyTable


def median(rows: ReplyTable) -> Tensor:
    """The middle value of every coordinate; of an even number, the mean of the two in the middle.

    Yin et al. 2018, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
    Definition 1. With fewer than half of the rows hostile, each coordinate lies among the honest ones.
    """
    n = len(rows)
    parts = []
    for block in rows.slices():
        ordered = block.T.contiguous().sort(dim=1).values  # (coordinates, rows)
        parts.append((ordered[:, (n - 1) // 2].double() + ordered[:, n // 2].double()) / 2)
    return joined(parts)


def trimmed(rows: ReplyTable, share: float = 0.2) -> Tensor:
    """The weighted mean of every coordinate without `share` of the values at each end.

    Yin et al. 2018, Definition 2. Differs from the paper: what is left is weighted. At least one value
    is left (two of an even number), so that 0.5 is the median. With no more hostile rows than are cut
    at an end, each coordinate lies among the honest ones.
    """
    n = len(rows)
    cut = min(whole(share, n), (n - 1) // 2)
    order = rows.weights.argsort(stable=True)  # so that equal values are cut in an order of their own
    weights = rows.weights[order]
    parts = []
    for block in rows.slices():
        values, places = block[order].T.contiguous().sort(dim=1, stable=True)
        w = weights[places[:, cut : n - cut]]
        parts.append((values[:, cut : n - cut] * w).sum(1) / w.sum(1))
    return joined(parts)


def krum(rows: ReplyTable, hostile: float = 0.2, many: int = 0) -> Tensor:
    """The mean of the `many` rows that lie closest to their neighbours (0: all but the hostile share).

    Blanchard et al. 2017, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
    section 4: with f of n rows hostile, a row's score is the sum of the squared distances to its
    n - f - 2 nearest others, and 2f + 2 < n must hold. One row is Krum, several are multi-Krum.
    """
    n = len(rows)
    if not rows.width:
        return joined([])
    f = whole(hostile, n)
    check_krum(n, hostile)
    near = distances(rows).fill_diagonal_(torch.inf).sort(dim=1).values[:, : n - f - 2]
    scores = near.sum(1).tolist()
    times = Counter(scores)
    order = sorted(range(n), key=lambda i: (scores[i], rows.digest(i) if times[scores[i]] > 1 else b""))
    chosen = torch.tensor(order[: min(many, n) or n - f])
    return joined([block[chosen].double().mean(0) for block in rows.slices()])


def check_krum(n: int, hostile: float) -> None:
    """Refuse too few replies, for which Krum is not defined."""
    f = whole(hostile, n)
    if n < 2 * f + 3:
        raise NoReply(
            f"Krum with {f} hostile of {n} replies (guard.hostile={hostile:g}) needs at least {2 * f + 3} replies\n"
            "hint: a larger train.cohort, a smaller guard.hostile, or guard.mean=median"
        )


def distances(rows: ReplyTable) -> Tensor:
    """Squared distances of all pairs of rows, slice by slice."""
    n = len(rows)
    pairs = torch.zeros(n * (n - 1) // 2, dtype=torch.float64)
    for block in rows.slices():
        # Products of matrices would be faster, and would round by the place of a row.
        pairs += torch.nn.functional.pdist(block.double()).square_()
    i, j = torch.triu_indices(n, n, 1)
    total = torch.zeros(n, n, dtype=torch.float64)
    total[i, j] = total[j, i] = pairs
    return total


def whole(share: float, many: int) -> int:
    """A share of many, rounded up; 0.1 of 30 is 3, though the product is a little more."""
    return math.ceil(share * many - 1e-9)


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)
