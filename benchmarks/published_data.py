"""Data of the published workloads: FLUTE's MNIST by 1,000 clients, and images in the shape of FedJAX's EMNIST.

Knows numpy and motet's pools. Knows nothing of methods or of times. A run finds them as `data=published_data:flute`
and `data=published_data:fedjax`. Rows that the published runs score stand in as validation rows.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from motet.data.federated import PARTS, Pixels, Pool
from motet.data.files.cache import arrays

GREY = Pixels((0.1307,), (0.3081,))  # MNIST's mean and deviation
SCORED = 0.1  # share of a client's rows that is scored, as in FedML's MNIST and in EMNIST
SIDE = 28


def sizes_of(clients: int, rows: int, spread: float, least: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of each client: log-normal, their deviation being `spread` times the mean; their sum is about `rows`."""
    raw = rng.lognormal(0, np.sqrt(np.log(1 + spread**2)), clients)
    return least + np.floor(raw / raw.sum() * (rows - clients * least)).astype(np.int64)


def parts_of(sizes: np.ndarray) -> np.ndarray:
    """The last tenth of each client's rows, and at least one, is scored."""
    within = np.concatenate([np.arange(n) for n in sizes])
    scored = within >= np.repeat(sizes - np.maximum(sizes * SCORED, 1).astype(np.int64), sizes)
    return np.where(scored, PARTS.index("val"), PARTS.index("train"))


def made_images(y: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Grey images (N, 1, 28, 28) as bytes: a class's pattern of 4 x 4 patches, and noise."""
    patterns = rng.integers(0, 160, (classes, SIDE // 4, SIDE // 4), dtype=np.uint8)
    patterns = patterns.repeat(4, axis=1).repeat(4, axis=2)[:, None]
    x = rng.integers(0, 96, (len(y), 1, SIDE, SIDE), dtype=np.uint8)
    for begin in range(0, len(y), 10_000):
        x[begin : begin + 10_000] += patterns[y[begin : begin + 10_000]]
    return x


def federated(x: np.ndarray, y: np.ndarray, sizes: np.ndarray, classes: int) -> Pool:
    names = tuple(f"client-{i:05}" for i in range(len(sizes)))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = tuple(map(str, range(classes)))
    part = parts_of(sizes)
    return Pool(x, y, "classes", labels, (), owner, names, part, scaling="none", pixels=GREY, all_train=True)


def has_mnist() -> bool:
    """Whether MNIST's files are in MOTET_DATA; nothing is downloaded for a benchmark."""
    return any((Path(os.environ.get("MOTET_DATA", "")) / name).is_dir() for name in ("mnist", "MNIST"))


def mnist_rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """All 70,000 rows: MNIST's, or made ones of the same size."""
    if has_mnist():
        found = arrays("mnist")
        return found["x"].transpose(0, 3, 1, 2), found["y"].astype(np.int64)
    y = rng.integers(0, 10, 70_000)
    return made_images(y, 10, rng), y


def two_digits_each(y: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The rows of all clients, one client after another; each client draws from two classes, while there are rows."""
    left = [list(rng.permutation(np.flatnonzero(y == c))) for c in range(10)]
    rows: list[int] = []
    for client, size in enumerate(sizes):
        pair = [client % 10, (client + 1 + client // 10 % 9) % 10]
        mine: list[int] = []
        while len(mine) < size:
            pair = [c for c in pair if left[c]] or [max(range(10), key=lambda c: len(left[c]))]
            mine.append(left[pair[len(mine) % len(pair)]].pop())
        rows += list(rng.permutation(mine))
    return np.array(rows)


def flute(
    *,
    clients: int = 1000,  # number of clients
) -> Pool:
    """MNIST by 1,000 clients with two digits each; 70 rows on average, with a deviation of 1.5 times that."""
    rng = np.random.default_rng(0)
    x, y = mnist_rows(rng)
    sizes = sizes_of(clients, len(y), 1.5, 10, rng)
    rows = two_digits_each(y, sizes, rng)
    return federated(x[rows], y[rows], sizes, 10)


def fedjax(
    *,
    clients: int = 3400,  # number of clients
) -> Pool:
    """Made images of 62 classes by 3,400 clients; 220 rows on average as in EMNIST, with a deviation of 88."""
    rng = np.random.default_rng(0)
    sizes = sizes_of(clients, 220 * clients, 0.4, 20, rng)
    y = rng.integers(0, 62, int(sizes.sum()))
    return federated(made_images(y, 62, rng), y, sizes, 62)
