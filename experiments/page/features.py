"""Images and text as fixed features, so that desk-scale tables train two dense layers and not a ResNet or an LSTM.

`data.name = "experiments.page.features:cifar100"`. An image is what fixed filters answer. They are random, of zero
mean, and learn nothing: no image, not even an unlabelled one, has a part in them (Saxe et al. 2011, "On Random
Weights and Unsupervised Feature Learning": the architecture does most of the work). An image is first divided by its
local contrast. Some images of each class are taken: the first ones of the file, for clients and for the server.
A text is its last few characters, each as 80 numbers of which one is 1.
Knows images in the cache, windows of text and a Pool. Does not know clients or methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from motet.data.federated import Pool
from motet.data.files.array_cache import Arrays, keep, key
from motet.data.files.cache import arrays
from motet.data.sets.shakespeare import load as windows

FILTERS, SIZE, STRIDE = (
    64,
    5,
    2,
)  # random filters, their width in pixels, and the distance between two answers
GRID, COLOURS = 2, 4  # mean answers in each of GRID x GRID fields, mean colours in COLOURS x COLOURS
AROUND, LEAST = 7, 0.05  # pixels of a neighbourhood, and what is added to its contrast
THRESHOLD = 0.5  # answers below it are 0
AT_ONCE = 500  # images


def cifar100(*, each: int = 100, server: int = 50) -> Pool:
    """CIFAR-100: `each` training images of every class, and `server` official test images of it."""
    return described(arrays("cifar100"), "cifar100", "fine", "fine_names", each, server)


def tiny_imagenet(*, each: int = 500, server: int = 50) -> Pool:
    """Tiny ImageNet, the classes that are there: `each` training images, `server` validation images."""
    return described(arrays("tiny_imagenet"), "tiny_imagenet", "y", "classes", each, server)


def shakespeare(
    *,
    seed: int,
    users: int = 20,  # roles drawn by data.seed
    crop: int = 500,  # consecutive windows of a role: 70 % train, 10 % validation, 20 % test
    server: int = 150,  # windows of each role for the server
    letters: int = 5,  # characters before the one to predict
) -> Pool:
    """Shakespeare's roles; the last characters of a window, (windows, letters * 80)."""
    found = windows(seed=seed, users=users, crop=crop, server=server)
    symbols = np.eye(len(found.classes), dtype=np.float32)
    x = symbols[found.x[:, -letters:].astype(np.int64)].reshape(len(found.x), -1)
    return replace(found, x=x, scaling="none", digest="")


def described(found: Arrays, name: str, target: str, names: str, each: int, server: int) -> Pool:
    """The pool of some images of each class, by their features; computed once and kept."""
    y, part = np.asarray(found[target]), np.asarray(found["part"])
    rows = first_of_each(y, part, {-1: each, int(part.max()): server})
    shape = (FILTERS, SIZE, STRIDE, GRID, COLOURS, AROUND, LEAST, THRESHOLD)
    kept = keep(
        f"{name}-features",
        key([found.digest, each, server, shape]),
        lambda: {"x": features(found["x"][rows]).numpy()},
    )
    return Pool(
        kept["x"], y[rows].astype(np.int64), "classes", tuple(map(str, found[names])), part=part[rows]
    )


def first_of_each(y: np.ndarray, part: np.ndarray, many: dict[int, int]) -> np.ndarray:
    """Places of the first rows of every class and part, in their order.

    >>> first_of_each(np.array([0, 0, 1, 1, 0]), np.array([-1, -1, -1, 4, 4]), {-1: 1, 4: 5}).tolist()
    [0, 2, 3, 4]
    """
    places = [
        np.flatnonzero((y == label) & (part == which))[:most]
        for label in np.unique(y)
        for which, most in many.items()
    ]
    return np.sort(np.concatenate(places))


def features(x: np.ndarray) -> Tensor:
    """(N, features) of images (N, height, width, 3) of bytes."""
    filters = random_filters()
    return torch.cat([answers(batch, filters) for batch in batches(x)])


def batches(x: np.ndarray) -> Iterator[Tensor]:
    for start in range(0, len(x), AT_ONCE):
        yield torch.from_numpy(np.array(x[start : start + AT_ONCE])).permute(0, 3, 1, 2).float() / 255


def random_filters() -> Tensor:
    """(FILTERS, 3, SIZE, SIZE): zero mean in each colour, length 1; always the same ones."""
    filters = torch.randn(FILTERS, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    filters = filters - filters.mean((2, 3), keepdim=True)
    return filters / filters.flatten(1).norm(dim=1)[:, None, None, None]


def answers(images: Tensor, filters: Tensor) -> Tensor:
    """(N, features): the root of mean answers, those above zero and those below it, and mean colours."""
    found = F.conv2d(contrast(images), filters, stride=STRIDE)
    both = torch.cat([F.relu(found - THRESHOLD), F.relu(-found - THRESHOLD)], dim=1)
    fields = F.adaptive_avg_pool2d(both, GRID).flatten(1).sqrt()
    return torch.cat([fields, F.adaptive_avg_pool2d(images, COLOURS).flatten(1)], dim=1)


def contrast(images: Tensor) -> Tensor:
    """Each pixel less the mean around it, divided by the deviation around it."""
    centred = images - around(images)
    return centred / (around(centred.square().mean(1, keepdim=True)).sqrt() + LEAST)


def around(images: Tensor) -> Tensor:
    return F.avg_pool2d(images, AROUND, 1, AROUND // 2, count_include_pad=False)
