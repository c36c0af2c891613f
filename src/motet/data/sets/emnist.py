"""EMNIST (Cohen et al. 2017): handwritten letters and digits of 28 x 28; 131,600 images in 47 classes, and more."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import DataError, Pixels, Pool
from motet.data.files.cache import Arrays, arrays
from motet.data.files.download import Remote, checksum
from motet.data.files.image_formats import idx_array, parts
from motet.data.files.local_files import compare, find, reading

SOURCES = (
    Remote(
        "gzip.zip",
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        md5="58c8d27c78d21e728a6bc7b3cc06412e",
    ),
)
FOLDERS = ("emnist", "EMNIST")
ORIGIN = "EMNIST is gzip.zip of www.nist.gov/itl/products-and-services/emnist-dataset"
KINDS = ("balanced", "byclass", "digits", "letters")
_SIGNS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MERGED = "cijklmopsuvwxyz"  # letters whose capital looks the same: one class in `balanced`
CLASSES = {
    "balanced": tuple(c for c in _SIGNS if c not in _MERGED),
    "byclass": tuple(_SIGNS),
    "digits": tuple("0123456789"),
    "letters": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}


def decode(folder: Path) -> dict[str, np.ndarray]:
    """All four kinds, each with its training images first."""
    path = find(folder, SOURCES[0].file)
    compare(path, "md5", checksum(path, "md5") if SOURCES[0].md5 else "", SOURCES[0].md5)
    made: dict[str, np.ndarray] = {}
    with reading(path, "no zip archive"), zipfile.ZipFile(path) as archive:
        there = {Path(n).name: n for n in archive.namelist()}
        for kind in KINDS:
            found = []
            for part in ("train", "test"):
                for what in ("images-idx3", "labels-idx1"):
                    name = f"emnist-{kind}-{part}-{what}-ubyte.gz"
                    if name not in there:
                        raise DataError(f"{path} has no {name}.\nhint: it must be EMNIST's gzip.zip")
                    found.append(idx_array(gzip.decompress(archive.read(there[name])), name))
            x, y = np.concatenate(found[0::2]), np.concatenate(found[1::2])
            made[f"x_{kind}"] = np.ascontiguousarray(x.swapaxes(1, 2)[..., None])  # files hold columns first
            made[f"y_{kind}"] = y - (kind == "letters")  # letters are counted from 1
            made[f"part_{kind}"] = parts(len(found[1]), len(found[3]))
    return made


def load(
    *,
    kind: Literal["balanced", "byclass", "digits", "letters"] = "balanced",  # which of EMNIST's sets
) -> Pool:
    """Grey images; the official test images are the server's. Writers are not named: LEAF's files of FEMNIST name
    them, and are read as a folder of their own."""
    found = arrays("emnist")
    own = Arrays(
        {k: found[f"{k}_{kind}"] for k in ("x", "y", "part")}, f"{found.digest} {kind}", found.folder
    )
    return pool(own, CLASSES[kind], Pixels((0.1722,), (0.3309,)))
