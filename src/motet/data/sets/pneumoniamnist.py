"""PneumoniaMNIST (Yang et al. 2023): 5,856 X-rays of children's chests, 28 x 28, with pneumonia or without."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.medmnist import PLACE, decode_medmnist

SOURCES = (
    Remote(
        "pneumoniamnist.npz", f"{PLACE}pneumoniamnist.npz?download=1", md5="28209eda62fecd6e6a2d98b1501bb15f"
    ),
)
FOLDERS = ("pneumoniamnist", "medmnist", "MedMNIST")
ORIGIN = "pneumoniamnist.npz is a file of MedMNIST, zenodo.org/records/10519652"
CLASSES = ("normal", "pneumonia")


def decode(folder: Path) -> dict[str, np.ndarray]:
    return decode_medmnist(folder, SOURCES[0])


def load() -> Pool:
    """Grey images; the official test images are the server's."""
    return pool(arrays("pneumoniamnist"), CLASSES, Pixels((0.5,), (0.5,)))
