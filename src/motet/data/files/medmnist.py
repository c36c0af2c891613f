"""The files of MedMNIST (Yang et al. 2023): one .npz per set, with images and labels of three official parts.

Knows the form of these files. Does not know any one set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.federated import PARTS, DataError
from motet.data.files.download import Remote, checksum
from motet.data.files.image_formats import table_of
from motet.data.files.local_files import compare, find

PLACE = "https://zenodo.org/records/10519652/files/"


def decode_medmnist(folder: Path, source: Remote) -> dict[str, np.ndarray]:
    """Images (N, 28, 28, channels), classes and parts; the official test images are the server's."""
    path = find(folder, source.file)
    compare(path, "md5", checksum(path, "md5") if source.md5 else "", source.md5)
    named = {f"{part}_{what}": "iu" for part in ("train", "val", "test") for what in ("images", "labels")}
    found = table_of(path, **named)
    x, y, part = [], [], []
    for which, number in (("train", 0), ("val", 1), ("test", PARTS.index("server_test"))):
        images, labels = found[f"{which}_images"], found[f"{which}_labels"].reshape(-1)
        if len(images) != len(labels) or images.ndim not in (3, 4):
            raise DataError(f"{path}: {which} has images of shape {images.shape} and {len(labels)} labels")
        x.append(images[..., None] if images.ndim == 3 else images)
        y.append(labels)
        part.append(np.full(len(labels), -1 if number < 2 else number, np.int8))
    return {
        "x": np.concatenate(x).astype(np.uint8),
        "y": np.concatenate(y).astype(np.uint8),
        "part": np.concatenate(part),
    }
