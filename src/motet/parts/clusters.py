"""Clusters of vectors, for example of clients' sparsity vectors: k-means, links within a threshold, or at random.

Yang et al. 2022, section III.B: k-means with Euclidean distances. Our addition: vectors can first be whitened
by the covariance of single examples (`whitening`). Directions in which all examples vary, such as brightness,
then count little, and sampling noise is the same in all directions.
Knows vectors of numbers, one row each. Does not know clients, or what clusters are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Vectors = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
MOST = 10  # the largest k that is tried
_FLOOR = 1e-4  # of the largest variance: the least that a direction's variance counts as


def whitening(moments: Vectors, mean: Vectors, noise: float = 0.0) -> Vectors:
    """A matrix by which rows are multiplied: Euclidean distances then are Mahalanobis distances.

    `moments` are the examples' second moments about the same point as their `mean`. `noise` is the variance of
    noise that was added to rows, in units of single examples. Negative eigenvalues show how much noise is in
    the moments themselves; no eigenvalue counts for less than that.
    """
    values, vectors = np.linalg.eigh((moments + moments.T) / 2 - np.outer(mean, mean))
    values = np.maximum(values, max(_FLOOR * values.max(), -values.min(), 1e-12)) + noise
    found: Vectors = vectors / np.sqrt(values)
    return found


def labels_of(rows: Vectors, how: str, k: int, threshold: float, seed: int) -> Labels:
    """The group of each row, by kmeans (k = 0: as many as the silhouette says), threshold, random or none."""
    if how == "kmeans":
        return kmeans(rows, k or best_k(rows, seed), seed)
    if how == "threshold":
        return linked(rows, threshold)
    return random_groups(len(rows), k if how == "random" else 1, seed)


def kmeans(rows: Vectors, k: int, seed: int) -> Labels:
    """k-means, the best of ten starts; fewer than k groups if there are fewer distinct rows."""
    from sklearn.cluster import KMeans

    k = min(k, len(np.unique(rows, axis=0)))
    return in_order(KMeans(k, n_init=10, random_state=seed % 2**32).fit(rows).labels_)


def linked(rows: Vectors, threshold: float) -> Labels:
    """Single linkage: rows within the threshold are linked, and all rows of one chain are one group."""
    near = distances(rows, rows) <= threshold
    for _ in range(max(len(rows) - 1, 1).bit_length()):
        near = near @ near  # chains twice as long
    return in_order(near.argmax(1))  # a group is named by its first row


def bipartition(similarity: Vectors) -> Labels:
    """Two groups of rows, from similarities of all pairs, whose most similar pair across both is as unlike as can be:
    the most similar pairs are joined until two groups are left (single linkage).

    >>> bipartition(np.array([[1.0, 0.9, -0.8], [0.9, 1.0, -0.7], [-0.8, -0.7, 1.0]])).tolist()
    [0, 0, 1]
    """
    from sklearn.cluster import AgglomerativeClustering

    found = AgglomerativeClustering(2, metric="precomputed", linkage="single").fit(1.0 - similarity)
    return in_order(found.labels_)


def random_groups(many: int, k: int, seed: int) -> Labels:
    """Random groups whose sizes differ by at most one."""
    return in_order(np.random.default_rng(seed).permutation(many) % k)


def in_order(labels: Labels) -> Labels:
    """The same groups, numbered in the order of their first rows.

    >>> in_order(np.array([7, 2, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    first = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([first[label] for label in labels.tolist()], np.int64)


def best_k(rows: Vectors, seed: int) -> int:
    """The number of groups, up to ten, with the largest mean silhouette; 1 for fewer than three rows."""
    scores = {k: silhouette(rows, kmeans(rows, k, seed)) for k in range(2, largest_k(len(rows)) + 1)}
    return max(scores, key=lambda k: scores[k]) if scores else 1


def largest_k(rows: int) -> int:
    """The largest number of groups that is tried."""
    return max(min(MOST, rows - 1), 1)


def silhouette(rows: Vectors, labels: Labels) -> float:
    """The mean silhouette coefficient, -1 to 1 (Rousseeuw 1987); -1 with one group, or with groups of one only."""
    from sklearn.metrics import silhouette_score

    many = len(set(labels.tolist()))
    return float(silhouette_score(rows, labels)) if 1 < many < len(rows) else -1.0


def agreement(a: Labels, b: Labels) -> float:
    """The adjusted Rand index of two groupings: 1 if they are the same, about 0 if one is random."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a, b))


def centres(rows: Vectors, labels: Labels) -> Vectors:
    return np.stack([rows[labels == g].mean(0) for g in range(labels.max() + 1)])


def nearest(row: Vectors, centres: Vectors) -> int:
    return int(distances(row[None], centres)[0].argmin())


def principal_components(rows: Vectors) -> tuple[Vectors, float]:
    """Vectors in their first two principal components, and the share of the variance that these explain."""
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    u, s = np.pad(u, ((0, 0), (0, 2)))[:, :2], np.pad(s, (0, 2))
    sign = np.where(u[abs(u).argmax(0), [0, 1]] < 0, -1, 1)  # a fixed sign: the largest entry is positive
    return u * s[:2] * sign, float((s[:2] ** 2).sum() / max((s**2).sum(), 1e-300))


def distances(a: Vectors, b: Vectors) -> Vectors:
    """Euclidean distances of all pairs, (rows of a, rows of b)."""
    found: Vectors = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    return found
