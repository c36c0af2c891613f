"""CIFAR-10 (Krizhevsky 2009): 60,000 colour images of 32 x 32 in 10 classes, 10,000 of them official test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.image_formats import parts, records, sheets, table_of
from motet.data.files.local_files import find

# The binary archive: the one for Python is pickled, and pickles run code.
SOURCES = (
    Remote(
        "cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        170052171,
        md5="c32a1d4ab5d03f1284b67883e8d87530",
    ),
)
FOLDERS = ("cifar10", "cifar-10", "CIFAR10")
ORIGIN = "CIFAR-10 is cifar-10-binary.tar.gz of www.cs.toronto.edu/~kriz/cifar.html"
MANY = {"train": 50000, "test": 10000}  # images
RAW = {  # sha256 of all bytes (N, height, width, channels), where they come as sheets
    "train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
}
MEMBERS = {
    f"cifar-10-batches-bin/{n}.bin": 10000 for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
}
PIXELS = Pixels((0.49139968, 0.48215841, 0.44653091), (0.24703223, 0.24348513, 0.26158784))


def decode(folder: Path) -> dict[str, np.ndarray]:
    """The official archive, or sheets of images with labels.npz; both have the same order."""
    if (folder / "labels.npz").is_file():
        known = table_of(folder / "labels.npz", y_train="iu", y_test="iu", names="U")
        y, names = np.concatenate([known["y_train"], known["y_test"]]), known["names"]
        x = np.concatenate([sheets(folder, part, many, RAW[part]) for part, many in MANY.items()])
    else:
        path, words = find(folder, SOURCES[0].file), ("cifar-10-batches-bin/batches.meta.txt",)
        x, labels, [lines] = records(path, MEMBERS, words, 1, SOURCES[0].md5)
        y, names = labels[:, 0], np.array(lines)
    return {"x": x, "y": y, "part": parts(*MANY.values()), "classes": names}


def load(
    *,
    augment: bool = False,  # shift and flip training images at random
) -> Pool:
    """Colour images; the official test images are the server's."""
    found = arrays("cifar10")
    return pool(found, tuple(map(str, found["classes"])), PIXELS, augment=augment)
