"""SVHN (Netzer et al. 2011): 99,289 colour images of house numbers, 32 x 32, 26,032 of them official test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import DataError, Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote, checksum
from motet.data.files.image_formats import parts
from motet.data.files.local_files import compare, find, reading

_PLACE = "http://ufldl.stanford.edu/housenumbers/"
SOURCES = (
    Remote(
        "train_32x32.mat", f"{_PLACE}train_32x32.mat", 182_040_794, md5="e26dedcc434d2e4c54c9b2d4a06d8373"
    ),
    Remote("test_32x32.mat", f"{_PLACE}test_32x32.mat", 64_275_384, md5="eb5a983be6a315427106f1b164d9cef3"),
)
FOLDERS = ("svhn", "SVHN")
ORIGIN = "SVHN is train_32x32.mat and test_32x32.mat of ufldl.stanford.edu/housenumbers"
PIXELS = Pixels((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))  # of the training images


def decode(folder: Path) -> dict[str, np.ndarray]:
    """Images of both files; the class 10 of the files is the digit 0."""
    from scipy.io import loadmat

    found = []
    for source in SOURCES:
        path = find(folder, source.file)
        compare(path, "md5", checksum(path, "md5") if source.md5 else "", source.md5)
        with reading(path, "no MATLAB file"):
            table = loadmat(path, variable_names=["X", "y"])
        if "X" not in table or table["X"].ndim != 4 or len(table["y"]) != table["X"].shape[3]:
            raise DataError(f"{path} has no fitting X and y; expected images (32, 32, 3, N) and N classes")
        found.append((table["X"].transpose(3, 0, 1, 2), table["y"].reshape(-1) % 10))
    x, y = (np.concatenate(both) for both in zip(*found, strict=True))
    return {
        "x": np.ascontiguousarray(x, np.uint8),
        "y": y.astype(np.uint8),
        "part": parts(*(len(f[1]) for f in found)),
    }


def load(
    *,
    augment: bool = False,  # shift and flip training images at random; mirrored digits are other digits
) -> Pool:
    """Colour images; the official test images are the server's."""
    return pool(arrays("svhn"), tuple(map(str, range(10))), PIXELS, augment=augment)
