"""Heart disease at four hospitals (UCI; Janosi, Steinbrunn, Pfisterer and Detrano 1988): who has narrowed arteries.

920 patients of Cleveland, Budapest (hungarian), Zurich and Basel (switzerland) and Long Beach (va), 13 features.
The hospitals are the clients. The target is num > 0. By default all columns are there: categories as flags, called
by UCI's codes; cells with "?" are missing, and so are blood pressures and cholesterols of 0. A hospital that has next
to no values of a column does not hold it (option `held`): ca at three hospitals, thal at two, chol in Switzerland.
What is still missing is filled with means of training rows.

as_flamby = true is Fed-Heart-Disease of FLamby (Ogier du Terrail et al. 2022): slope, ca and thal go, and rows with
missing cells; cp and restecg as flags without their first code, 13 features in all; 66 % of a hospital's rows are for
training, by its fixed draw; every column, flags too, is standardised by the hospital's training rows. The server's
test set is FLamby's "pooled test": all test rows again, standardised by all training rows.
Differs from FLamby: validation rows (data.val) are drawn from its training rows, and columns are standardised by what
is left; data.val = 0 gives FLamby's numbers.

The data are under the Creative Commons licence CC BY 4.0.
Knows the files and FLamby's preparation. Does not know how missing cells are filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from motet.client import Column
from motet.data.federated import PARTS, DataError, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SOURCES = tuple(
    Remote(f"processed.{hospital}.data", f"{_UCI}/processed.{hospital}.data", size, sha256)
    for hospital, size, sha256 in (
        ("cleveland", 18_461, "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
        ("hungarian", 10_263, "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
        ("switzerland", 4_109, "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
        ("va", 6_737, "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
    )
)
FOLDERS = ("heart", "heart_disease")
ORIGIN = (
    "UCI's data set Heart Disease (archive.ics.uci.edu/dataset/45/heart+disease): the files "
    + ", ".join(s.file for s in SOURCES)
)

_SHORT = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
_DROPPED = ("slope", "ca", "thal")  # by FLamby, as are incomplete rows
_NAMES = [*_SHORT, *_DROPPED, "num"]
_ROWS = (303, 294, 123, 200)
_FLAGS = ("sex", "fbs", "exang")
_CODES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
_NEVER_ZERO = ("trestbps", "chol")
_CLASSES = ("healthy", "disease")
_TRAIN_SHARE, _SEED = 0.66, 43  # FLamby's


def load(
    *,
    as_flamby: bool = False,  # FLamby's 13 features, complete rows, and its fixed training and test rows
    held: float = 0.2,  # a hospital with values in fewer than this share of its rows does not hold a column
) -> Pool:
    """A table of numbers and flags; the clients are the hospitals."""
    found = arrays("heart")
    return flamby_pool(found) if as_flamby else pool(found, held)


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (920, 13) as in the files, NaN for "?"; num, from 0 to 4; and each row's hospital."""
    tables = [_read(find(folder, s.file), s.sha256, rows) for s, rows in zip(SOURCES, _ROWS, strict=True)]
    values = np.concatenate(tables)
    owner = np.repeat(np.arange(len(_ROWS)), _ROWS)
    return {"x": np.ascontiguousarray(values[:, :-1]), "num": values[:, -1].astype(np.int64), "owner": owner}


def _read(path: Path, sha256: str, rows: int) -> np.ndarray:
    import pandas as pd

    raw = BytesIO(content(path, sha256=sha256))
    with reading(path):
        values: np.ndarray = pd.read_csv(raw, header=None, na_values="?").to_numpy(np.float64)
    frames.expect(path, "rows and columns", values.shape, (rows, len(_NAMES)))
    return values


# ---- all columns ----


def pool(found: Mapping[str, np.ndarray], held: float = 0.2) -> Pool:
    """All rows and columns; columns that a hospital does not hold are missing in all of its rows."""
    if not 0 <= held <= 1:
        raise DataError(f"held is {held}; expected a share of a hospital's rows, from 0 to 1")
    raw, owner = found["x"].copy(), found["owner"]
    for name in _NEVER_ZERO:
        at = _NAMES.index(name)
        raw[raw[:, at] == 0, at] = np.nan
    there = np.stack([(~np.isnan(raw[owner == i])).mean(0) for i in range(len(HOSPITALS))])
    has = (there >= held) & (there > 0)  # (hospitals, 13)
    raw[~has[owner]] = np.nan
    x, columns = _encoded(raw)
    wide = [_NAMES.index(c.group or c.name) for c in columns]
    return Pool(
        x, _target(found), "classes", _CLASSES, columns, owner, HOSPITALS,
        fill=True, held=has[:, wide], notes=_absent(has),
    )  # fmt: skip


def _encoded(raw: np.ndarray) -> tuple[np.ndarray, tuple[Column, ...]]:
    """Categories as flags of their codes; a missing one is missing in all of its flags."""
    values, columns = [], []
    for name, cells in zip(_NAMES, raw.T, strict=False):
        codes = np.array(_CODES.get(name, ()))
        if len(codes):
            values.append(np.where(np.isnan(cells)[:, None], np.nan, cells[:, None] == codes))
            columns += [Column(f"{name}={code}", "flag", name) for code in codes]
        else:
            values.append(cells[:, None])
            columns.append(Column(name, "flag" if name in _FLAGS else "number"))
    return np.concatenate(values, 1), tuple(columns)


def _absent(has: np.ndarray) -> list[str]:
    """A note on the columns that hospitals do not hold."""
    lacking = [
        f"{hospital} has no {', '.join(n for n, h in zip(_NAMES, mine, strict=False) if not h)}"
        for hospital, mine in zip(HOSPITALS, has, strict=True)
        if not mine.all()
    ]
    return [f"columns that a hospital does not hold: {'; '.join(lacking)}"] if lacking else []


def _target(found: Mapping[str, np.ndarray]) -> np.ndarray:
    return (found["num"] > 0).astype(np.int64)


# ---- FLamby's ----


def flamby_pool(found: Mapping[str, np.ndarray]) -> Pool:
    """Complete rows in the order of the files, with FLamby's parts."""
    whole = ~np.isnan(found["x"][:, : len(_SHORT)]).any(1)
    x, every = _encoded(found["x"][whole])
    first = {f"{name}={codes[0]}" for name, codes in _CODES.items()}
    plain = [i for i, c in enumerate(every) if not c.group and c.name not in _DROPPED]
    flags = [i for i, c in enumerate(every) if c.group and c.group not in _DROPPED and c.name not in first]
    order = [*plain, *flags]
    x, y, owner = np.ascontiguousarray(x[:, order]), _target(found)[whole], found["owner"][whole]
    part = flamby_parts(y, owner)
    test = part == PARTS.index("test")
    return Pool(
        x, y, "classes", _CLASSES, tuple(every[i] for i in order), owner, HOSPITALS, part,
        server_test=(x[test], y[test]), scaling="client", sample_deviation=True,
    )  # fmt: skip


def flamby_parts(y: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """FLamby's draw at each hospital; by class where each class has more than two rows."""
    from sklearn.model_selection import train_test_split

    part = np.full(len(y), PARTS.index("train"))
    for hospital in np.unique(owner):
        rows = np.flatnonzero(owner == hospital)
        counts = np.unique(y[rows], return_counts=True)[1]
        by_class = y[rows] if len(counts) > 1 and counts.min() > 2 else None
        shares = {"train_size": _TRAIN_SHARE, "test_size": 1.0 - _TRAIN_SHARE}
        _, test = train_test_split(rows, **shares, random_state=_SEED, stratify=by_class)
        part[test] = PARTS.index("test")
    return part
