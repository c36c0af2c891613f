"""MNIST (LeCun et al. 1998): 70,000 handwritten digits of 28 x 28, 10,000 of them the official test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.image_formats import four_idx

_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
SOURCES = tuple(
    Remote(f"{name}.gz", f"{_MIRROR}{name}.gz", size, md5=md5)
    for name, size, md5 in (
        ("train-images-idx3-ubyte", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)
FOLDERS = ("mnist", "MNIST")
ORIGIN = "MNIST is the four files train-images-idx3-ubyte.gz, ..., of Yann LeCun's page and its mirrors"
UNPACKED = {  # md5 of the unpacked files, since gzip files differ
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


def decode(folder: Path) -> dict[str, np.ndarray]:
    return four_idx(folder, UNPACKED)


def load() -> Pool:
    """Grey images; the official test images are the server's."""
    return pool(arrays("mnist"), tuple(map(str, range(10))), Pixels((0.1307,), (0.3081,)))
