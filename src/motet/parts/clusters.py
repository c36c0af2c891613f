"""Groups of rows of numbers, say of clients' sparsity vectors (sketches.py): k-means, links, or a draw.

Yang et al. 2022, section III.B: k-means with Euclidean distances. Beyond the paper, rows can first be measured
in units of how much single examples differ inside clients (`ruler`): directions in which all images vary,
like brightness, then count for as little as they tell of a client, and chance makes all directions equal.
Knows rows of numbers. Does not know clients, or what groups are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float64]]
Labels = np.ndarray[Any, np.dtype[np.int64]]
_MOST = 10  # groups that are tried when silhouettes choose
_FLOOR = 1e-4  # of the largest variance: directions in which nothing varies are not blown up


def ruler(moments: Rows, mean: Rows, noise: float = 0.0) -> Rows:
    """A matrix by which rows are multiplied, so that Euclidean distances become Mahalanobis's.

    `moments` are the examples' second moments, about the same point as `mean`, which is the mean of all;
    `noise` is the variance of what was added to rows, in the unit of single examples. Variances below zero show
    how much noise is in the moments themselves; none counts for less than that.
    """
    values, vectors = np.linalg.eigh((moments + moments.T) / 2 - np.outer(mean, mean))
    values = np.maximum(values, max(_FLOOR * values.max(), -values.min(), 1e-12)) + noise
    found: Rows = vectors / np.sqrt(values)
    return found


def grouped(rows: Rows, how: str, k: int, threshold: float, seed: int) -> Labels:
    """The group of each row: by kmeans (k groups; 0 = by silhouettes), threshold, at random, or all in one."""
    if how == "kmeans":
        return kmeans(rows, k or best_k(rows, seed), seed)
    if how == "threshold":
        return linked(rows, threshold)
    return random_groups(len(rows), k if how == "random" else 1, seed)


def kmeans(rows: Rows, k: int, seed: int) -> Labels:
    """Groups by k-means, the best of ten tries; fewer than k if there are fewer different rows."""
    from sklearn.cluster import KMeans

    k = min(k, len(np.unique(rows, axis=0)))
    return in_order(KMeans(k, n_init=10, random_state=seed % 2**32).fit(rows).labels_)


def linked(rows: Rows, threshold: float) -> Labels:
    """Groups in which everyone is within a distance of somebody (all of one chain are one group)."""
    near = distances(rows, rows) <= threshold
    for _ in range(max(len(rows) - 1, 1).bit_length()):
        near = near @ near  # reaches twice as far
    return in_order(near.argmax(1))  # the first that is reached


def random_groups(many: int, k: int, seed: int) -> Labels:
    """Groups at random, of the same size up to one."""
    return in_order(np.random.default_rng(seed).permutation(many) % k)


def in_order(labels: Labels) -> Labels:
    """The same groups, numbered as they come.

    >>> in_order(np.array([7, 2, 7, 0])).tolist()
    [0, 1, 0, 2]
    """
    first = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([first[label] for label in labels.tolist()], np.int64)


def best_k(rows: Rows, seed: int) -> int:
    """The number of groups, up to ten, whose mean silhouette is largest; 1 where there is nothing to tell."""
    scores = {k: silhouette(rows, kmeans(rows, k, seed)) for k in range(2, most(len(rows)) + 1)}
    return max(scores, key=lambda k: scores[k]) if scores else 1


def most(rows: int) -> int:
    """The largest number of groups that is tried."""
    return max(min(_MOST, rows - 1), 1)


def silhouette(rows: Rows, labels: Labels) -> float:
    """How much nearer everyone is to its own group than to the next one, -1 to 1 (Rousseeuw 1987);
    -1 if there is one group only, or if all are alone."""
    from sklearn.metrics import silhouette_score

    many = len(set(labels.tolist()))
    return float(silhouette_score(rows, labels)) if 1 < many < len(rows) else -1.0


def agreement(a: Labels, b: Labels) -> float:
    """The adjusted Rand index of two groupings: 1 if they are the same, about 0 if one is at random."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(a, b))


def centres(rows: Rows, labels: Labels) -> Rows:
    return np.stack([rows[labels == g].mean(0) for g in range(labels.max() + 1)])


def nearest(row: Rows, centres: Rows) -> int:
    return int(distances(row[None], centres)[0].argmin())


def flat(rows: Rows) -> tuple[Rows, float]:
    """Rows in their first two principal components, and what share of their variance that shows."""
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    u, s = np.pad(u, ((0, 0), (0, 2)))[:, :2], np.pad(s, (0, 2))
    sign = np.where(u[abs(u).argmax(0), [0, 1]] < 0, -1, 1)  # which way is up is nobody's choice
    return u * s[:2] * sign, float((s[:2] ** 2).sum() / max((s**2).sum(), 1e-300))


def distances(a: Rows, b: Rows) -> Rows:
    """Euclidean ones of all pairs, (rows of a, rows of b)."""
    found: Rows = np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))
    return found
