"""Forest cover type (UCI): 492,115 patches of forest in three wilderness areas, 50 features; spruce or pine.

Prepared as Cantu-Cervini 2024 (stacking) does: of seven cover types the two that are common, 1 and 2;
the area Cache la Poudre has only one of them and goes; the other three areas are the clients. Each of
the 40 soil types is a column by itself, not one of a group. The paper's vertical runs use 50,000 random rows
(rows = 50000). Differs from the paper: our own generator draws them, with seed 42.

Knows the files. Does not know how rows are divided among clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from motet.data.federated import DataError, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading

SOURCES = (
    Remote(
        "covtype.data.gz",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
        sha256="614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
    ),
)
FOLDERS = ("covertype", "covtype")
ORIGIN = (
    "UCI's data set Covertype (archive.ics.uci.edu/dataset/31/covertype): the file covtype.data.gz; "
    "or Kaggle's uciml/forest-cover-type-dataset: covtype.csv"
)

_BODY = "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945"  # sha256 of covtype.data, unpacked
_NUMBERS = [
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
]
_SOILS = tuple(f"Soil_Type{i}" for i in range(1, 41))
_AREAS = ("Rawah", "Neota", "Comanche", "Poudre")
_OF_AREA = [260_796, 29_884, 253_364, 36_968]
_OF_COVER = [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
_SEED = 42  # the paper's, for its choice of rows


def load(
    *,
    rows: int = 0,  # number of rows, a fixed random choice; 0: all
) -> Pool:
    """A table of 10 numbers and 40 flags; the clients are the wilderness areas."""
    found = arrays("covertype")
    return pool(found, rows, found.digest)


def pool(found: Mapping[str, np.ndarray], rows: int = 0, digest: str = "") -> Pool:
    x, y, owner = found["x"], found["y"], found["owner"]
    if not 0 <= rows <= len(y):
        raise DataError(f"rows is {rows}; expected at most {len(y)}, or 0 for all")
    notes = []
    if rows:
        at = np.sort(np.random.Generator(np.random.PCG64(_SEED)).choice(len(y), rows, replace=False))
        notes.append(f"a fixed random choice of {rows} of {len(y)} rows (option rows)")
        x, y, owner, digest = x[at], y[at], owner[at], ""
    names = frames.columns([*_NUMBERS, *_SOILS], _SOILS)
    classes = ("spruce/fir", "lodgepole pine")
    return Pool(x, y, "classes", classes, names, owner, _AREAS[:3], notes=notes, digest=digest)


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (rows, 50), y and owner."""
    path = find(folder, "covtype.data", "covtype.csv", "covtype.npz")
    numbers, area, soil, cover = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    frames.expect(path, "rows", len(cover), sum(_OF_COVER))
    frames.expect(path, "rows of each cover type", np.bincount(cover)[1:].tolist(), _OF_COVER)
    frames.expect(path, "rows of each wilderness area", np.bincount(area)[1:].tolist(), _OF_AREA)
    here = (cover <= 2) & (area <= 3)
    x = np.zeros((here.sum(), len(_NUMBERS) + len(_SOILS)), np.float32)
    x[:, : len(_NUMBERS)] = numbers[here]
    x[np.arange(len(x)), len(_NUMBERS) - 1 + soil[here]] = 1
    return {"x": x, "y": cover[here].astype(np.int64) - 1, "owner": area[here].astype(np.int64) - 1}


_Raw = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # numbers; area, soil and cover, from 1 on


def _read_npz(path: Path) -> _Raw:
    with reading(path), np.load(path, allow_pickle=False) as raw:
        numbers = np.stack([raw[name] for name in _NUMBERS], axis=1)
        return numbers, raw["Wilderness_Area"], raw["Soil_Type"], raw["Cover_Type"]


def _read_csv(path: Path) -> _Raw:
    """55 columns: 10 numbers, 4 areas and 40 soils as 0 or 1, the cover; Kaggle's file has a header."""
    import pandas as pd

    official = ".data" in path.suffixes
    raw = BytesIO(content(path, sha256=_BODY if official else ""))
    with reading(path):
        frame = pd.read_csv(raw, header=None, skiprows=0 if official else 1, dtype=np.int16)
    frames.expect(path, "columns", frame.shape[1], 55)
    values = frame.to_numpy()
    for name, flags in (("areas", values[:, 10:14]), ("soils", values[:, 14:54])):
        frames.expect(path, f"rows with other than one of the {name}", int((flags.sum(1) != 1).sum()), 0)
    return values[:, :10], values[:, 10:14].argmax(1) + 1, values[:, 14:54].argmax(1) + 1, values[:, 54]
