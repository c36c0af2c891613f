"""Measures of skew: entropy, distance, inequality, moments.

Knows counts and arrays of numbers. Does not know clients or federations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def entropy(counts: np.ndarray) -> float:
    """Entropy of counts in bits; 0 for one class only, and for no rows.

    >>> entropy(np.array([5, 5])), entropy(np.array([7, 0]))
    (1.0, 0.0)
    """
    total = counts.sum()
    p = counts[counts > 0] / total
    return float(max(0.0, -(p * np.log2(p)).sum()))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Jensen-Shannon distance (Endres and Schindelin 2003, base 2): 0 for equal shares, 1 for disjoint classes.

    >>> distance(np.array([3, 0]), np.array([0, 9])), distance(np.array([1, 2]), np.array([2, 4]))
    (1.0, 0.0)
    """
    p, q = a / max(a.sum(), 1), b / max(b.sum(), 1)
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return float(np.sqrt(min(max(divergence, 0.0), 1.0)))


def gini(sizes: np.ndarray) -> float:
    """Inequality: 0 if all are equal, near 1 if one has everything.

    >>> gini(np.array([4, 4])), gini(np.array([0, 0, 0, 8]))
    (0.0, 0.75)
    """
    n, total = len(sizes), sizes.sum()
    if not total:
        return 0.0
    rank = 2 * np.arange(1, n + 1) - n - 1
    return float((rank * np.sort(sizes)).sum() / (n * total))


def decile_edges(values: np.ndarray, bins: int = 10) -> np.ndarray:
    """Edges between bins with equal shares of the values; fewer bins if many values are equal."""
    edges: np.ndarray = np.unique(np.quantile(values, np.arange(1, bins) / bins, method="higher"))
    edges = edges[edges > values.min()]  # edges are values, and no bin is empty
    return edges


def binned(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number of values in each bin; a value on an edge belongs to the bin above."""
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)


@dataclass(frozen=True)
class Moments:
    """Count, mean and squared deviations of columns, which can be added without the rows (Chan et al. 1979)."""

    n: np.ndarray | int
    mean: np.ndarray
    square: np.ndarray  # sum of (value - mean)²

    @classmethod
    def of(cls, rows: np.ndarray) -> Moments:
        mean = rows.mean(0, dtype=np.float64)
        return cls(len(rows), mean, ((rows - mean) ** 2).sum(0))

    def __add__(self, other: Moments) -> Moments:
        n = self.n + other.n
        apart, share = other.mean - self.mean, other.n / np.maximum(n, 1)
        square = self.square + other.square + apart**2 * self.n * share
        return Moments(n, self.mean + apart * share, square)

    def rescaled(self, middle: np.ndarray, spread: np.ndarray) -> Moments:
        """The moments of value * spread + middle."""
        return Moments(self.n, self.mean * spread + middle, self.square * spread**2)

    def only(self, which: np.ndarray) -> Moments:
        """With all other columns set to 0."""
        return Moments(*(np.where(which, v, 0) for v in (self.n, self.mean, self.square)))

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(self.square / np.maximum(self.n, 1))
