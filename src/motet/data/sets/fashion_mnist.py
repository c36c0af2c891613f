"""Fashion-MNIST (Xiao et al. 2017): 70,000 grey pictures of clothes, 28 x 28, 10,000 of them official test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.image_formats import four_idx

_MIRROR = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
SOURCES = tuple(
    Remote(f"{name}.gz", f"{_MIRROR}{name}.gz", size, md5=md5)
    for name, size, md5 in (
        ("train-images-idx3-ubyte", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte", 29515, "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte", 4422102, "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte", 5148, "bb300cfdad3c16e7a12a480ee83cd310"),
    )
)
FOLDERS = ("fashion_mnist", "fashion-mnist", "FashionMNIST")
ORIGIN = "Fashion-MNIST is the four files train-images-idx3-ubyte.gz, ..., of github.com/zalandoresearch/fashion-mnist"
CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def decode(folder: Path) -> dict[str, np.ndarray]:
    return four_idx(folder, {r.file.removesuffix(".gz"): r.md5 for r in SOURCES}, packed=True)


def load() -> Pool:
    """Grey images; the official test images are the server's."""
    return pool(arrays("fashion_mnist"), CLASSES, Pixels((0.2860,), (0.3530,)))
