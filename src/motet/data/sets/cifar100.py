"""CIFAR-100 (Krizhevsky 2009): 60,000 colour images of 32 x 32, 100 classes, 10,000 of them official test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import DataError, Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.image_formats import parts, records, sheets, table_of
from motet.data.files.local_files import find

# The binary archive: the one for Python is pickled, and pickles run code.
SOURCES = (
    Remote(
        "cifar-100-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        168513733,
        md5="03b5dce01913d631647c71ecec9e9cb8",
    ),
)
FOLDERS = ("cifar100", "cifar-100", "CIFAR100")
ORIGIN = "CIFAR-100 is cifar-100-binary.tar.gz of www.cs.toronto.edu/~kriz/cifar.html"
MANY = {"train": 50000, "test": 10000}  # images
RAW = {  # sha256 of all bytes (N, height, width, channels), where they come as sheets, class by class
    "train": "a678f5ab6ac125c4dfba98c64d1562b510eff50354e165b75e65d808f7be34c5",
    "test": "8532fd42ce092c665328a7201998ab7e8768dad37afff89be94e13106523a495",
}
MEMBERS = {"cifar-100-binary/train.bin": 50000, "cifar-100-binary/test.bin": 10000}
WORDS = ("cifar-100-binary/fine_label_names.txt", "cifar-100-binary/coarse_label_names.txt")
PIXELS = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # as PAGE rounds them


def decode(folder: Path) -> dict[str, np.ndarray]:
    """The official archive, or sheets of images with labels.npz, which have another order."""
    if (folder / "labels.npz").is_file():
        kinds = dict.fromkeys(("y_train", "y_test", "fine_to_coarse"), "iu")
        known = table_of(folder / "labels.npz", **kinds, fine_names="U", coarse_names="U")
        fine = np.concatenate([known["y_train"], known["y_test"]])
        coarse, names = known["fine_to_coarse"][fine], (known["fine_names"], known["coarse_names"])
        x = np.concatenate([sheets(folder, part, many, RAW[part]) for part, many in MANY.items()])
    else:
        x, labels, lines = records(find(folder, SOURCES[0].file), MEMBERS, WORDS, 2, SOURCES[0].md5)
        coarse, fine, names = labels[:, 0], labels[:, 1], (np.array(lines[0]), np.array(lines[1]))
    part = parts(*MANY.values())
    return {
        "x": x,
        "fine": fine,
        "coarse": coarse,
        "part": part,
        "fine_names": names[0],
        "coarse_names": names[1],
    }


def load(
    *,
    augment: bool = True,  # shift and flip training images at random
    labels: str = "fine",  # fine: 100 classes | coarse: 20
) -> Pool:
    """Colour images; the official test images are the server's."""
    if labels not in ("fine", "coarse"):
        raise DataError(f"labels is {labels!r}; expected 'fine' or 'coarse'")
    found = arrays("cifar100")
    return pool(found, tuple(map(str, found[f"{labels}_names"])), PIXELS, target=labels, augment=augment)
