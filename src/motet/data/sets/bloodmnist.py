"""BloodMNIST (Yang et al. 2023): 17,092 microscope images of blood cells, 28 x 28, in 8 classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.medmnist import PLACE, decode_medmnist

SOURCES = (
    Remote("bloodmnist.npz", f"{PLACE}bloodmnist.npz?download=1", md5="7053d0359d879ad8a5505303e11de1dc"),
)
FOLDERS = ("bloodmnist", "medmnist", "MedMNIST")
ORIGIN = "bloodmnist.npz is a file of MedMNIST, zenodo.org/records/10519652"
CLASSES = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocyte",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)


def decode(folder: Path) -> dict[str, np.ndarray]:
    return decode_medmnist(folder, SOURCES[0])


def load() -> Pool:
    """Colour images; the official test images are the server's."""
    return pool(arrays("bloodmnist"), CLASSES, Pixels((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
