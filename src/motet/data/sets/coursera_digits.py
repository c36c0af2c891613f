"""Digits of the Coursera course on machine learning (ex3data1): 5,000 of MNIST, shrunk to 20 x 20."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from motet.data.federated import DataError, Pool
from motet.data.files.cache import arrays
from motet.data.files.image_formats import idx, table_of
from motet.data.files.local_files import find
from motet.data.sets import mnist

# The course's file needs a login. It has 500 training images of MNIST for each digit, resized: so it is made here.
SOURCES = mnist.SOURCES[:2]
FOLDERS = ("coursera_digits", *mnist.FOLDERS)
ORIGIN = "These digits are ex3data1.mat of the course's third exercise; motet also makes them from MNIST"
EACH, SIDE = 500, 20


def decode(folder: Path) -> dict[str, np.ndarray]:
    """X (5000, 400) and labels 1 to 10, where 10 is the digit 0, from the course's file or from MNIST."""
    if (path := folder / "ex3data1.npz").is_file():
        found = table_of(path, X="f", y="iu")
        x, y = found["X"], found["y"]
    elif (path := folder / "ex3data1.mat").is_file():
        x, y = _matlab(path)
    else:
        path = find(folder, "train-images-idx3-ubyte", "train-images.idx3-ubyte")
        return _from_mnist(folder)
    if x.shape != (10 * EACH, SIDE * SIDE) or (y.reshape(-1) != np.repeat([10, *range(1, 10)], EACH)).any():
        raise DataError(
            f"{path} holds X {x.shape} and other labels; expected 5000 x 400, 500 of each digit in order"
        )
    return {"x": x.astype(np.float64), "y": (y.reshape(-1) % 10).astype(np.int64)}


def _matlab(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = loadmat(path, variable_names=("X", "y"))
        return found["X"], found["y"]
    except (MatReadError, OSError, ValueError, TypeError, KeyError, NotImplementedError) as e:
        raise DataError(f"{path} is no MATLAB file with X and y: {e!r}.\nhint: get it again") from e


def _from_mnist(folder: Path) -> dict[str, np.ndarray]:
    """The first 500 training images of each digit, resized and flattened column by column."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    images, labels = (
        idx(find(folder, n, n.replace("-idx", ".idx")), shape, mnist.UNPACKED[n])
        for n, shape in zip(names, ((60000, 28, 28), (60000,)), strict=True)
    )
    rows = np.concatenate([np.flatnonzero(labels == digit)[:EACH] for digit in range(10)])
    w = shrinking(28, SIDE)
    small = w @ (images[rows] / 255) @ w.T  # (5000, 20, 20)
    x = small.transpose(0, 2, 1).reshape(len(rows), SIDE * SIDE)
    return {"x": x, "y": labels[rows].astype(np.int64)}


def shrinking(many: int, few: int) -> np.ndarray:
    """The matrix (few, many) of MATLAB's imresize: a cubic kernel of the width of the reduction, edges repeated."""
    ratio = few / many
    centre = (np.arange(few) + 0.5) / ratio - 0.5  # of each new pixel, among the old ones
    reach = int(np.ceil(2 / ratio)) + 1
    at = np.floor(centre).astype(int)[:, None] + np.arange(-reach, reach + 1)  # (few, pixels in reach)
    weight = _cubic(ratio * (centre[:, None] - at))
    weight /= weight.sum(1, keepdims=True)
    matrix = np.zeros((few, many))
    np.add.at(matrix, (np.arange(few)[:, None], at.clip(0, many - 1)), weight)
    return matrix


def _cubic(t: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -1/2."""
    t = abs(t)
    near, far = 1.5 * t**3 - 2.5 * t**2 + 1, -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t <= 1, near, np.where(t <= 2, far, 0.0))


def load(
    *,
    as_published: bool = False,  # all 400 training rows of each digit, in double precision
    terms: Literal[
        "pixels", "squares", "neighbours"
    ] = "pixels",  # pixels | with squares | with products of neighbours too
) -> Pool:
    """A table of 400 grey values; one digit for each client, as in the swarm's paper.

    The paper suggests powers and interactions of pixels. All 79,800 products are too many for a swarm: `neighbours`
    has those of pixels side by side and one above the other, where the strokes are, 760 of them.
    """
    found = arrays("coursera_digits")
    y = np.asarray(found["y"])
    place = np.arange(len(y)) % EACH  # within the rows of its digit
    chosen_by = (place % 10 == 9) & (not as_published)
    part = np.where(place >= 400, 2, np.where(chosen_by, 1, 0))  # of a digit 360 train, 40 val, 100 test
    names = tuple(f"digit-{d}" for d in range(10))
    classes = tuple(map(str, range(10)))
    x = widened(np.asarray(found["x"]), terms)
    digest = found.digest if terms == "pixels" else f"{found.digest} {terms}"
    return Pool(
        x, y, "classes", classes, (), y, names, part,
        scaling="none", exact=as_published, digest=digest, all_train=as_published,
    )  # fmt: skip


def widened(x: np.ndarray, terms: str) -> np.ndarray:
    """Pixels, followed by their squares, followed by products of neighbours."""
    if terms == "pixels":
        return x
    grid = x.reshape(-1, SIDE, SIDE)
    products = [grid[:, 1:] * grid[:, :-1], grid[:, :, 1:] * grid[:, :, :-1]]
    wanted = products if terms == "neighbours" else []
    return np.concatenate([x, x**2, *(p.reshape(len(x), -1) for p in wanted)], 1)
