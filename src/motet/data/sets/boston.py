"""Boston housing (Harrison and Rubinfeld 1978): 506 districts, 13 features, the median price of a home.

Prepared as "Self-adaptive Federated Swarm Intelligence" does: Keras' split, which shuffles the rows by
NumPy's legacy generator with seed 113 and tests on the last 102; four clients hold consecutive blocks of
101 of the 404 training rows. The 102 are the server's test set. In the paper clients have no
validation and no test rows. as_published = true lets them train with all their rows, and leaves features and prices
unscaled in double precision (X'X has condition 2e8, so that single precision changes least squares).

Knows the files and Keras' split. Does not know the parts of a client's rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from motet.data.federated import PARTS, Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading

SOURCES = (
    Remote(
        "boston_housing.npz",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/boston_housing.npz",
        57_026,
        "f553886a1f8d56431e820c5b82552d9d95cfcb96d1e678153f8839538947dff5",
    ),
)
FOLDERS = ("boston", "boston_housing")
ORIGIN = "Keras' file boston_housing.npz; or UCI's housing.data; or a table with a header, boston_housing.csv"

_NAMES = ["CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT"]
_ROWS, _TRAIN, _BLOCK = 506, 404, 101
_SEED = 113  # Keras'
# sha256 of all values in units of 0.00001, row by row, price last: the same for every format.
_VALUES = "ee6d4dbe86eb3e9d39d937bcdb31f4516d0266306ae0b43a95f5b3b5d8ccf29f"


def load(
    *,
    as_published: bool = False,  # unscaled numbers; clients have training rows only, and the server the test set
) -> Pool:
    """A table of 12 numbers and a flag; the clients are four blocks of rows."""
    found = arrays("boston")
    return pool(found, as_published, found.digest)


def pool(found: Mapping[str, np.ndarray], as_published: bool = False, digest: str = "") -> Pool:
    row = np.arange(_ROWS)
    names = tuple(f"block-{i}" for i in range(_TRAIN // _BLOCK))
    owner = np.minimum(row // _BLOCK, len(names) - 1)  # the owner of the server's test rows is not used
    part = np.where(row < _TRAIN, PARTS.index("train") if as_published else -1, PARTS.index("server_test"))
    columns = frames.columns(_NAMES, {"CHAS"})
    scaling = "none" if as_published else "federation"
    return Pool(
        found["x"], found["y"], "numbers", (), columns, owner, names, part,
        scaling=scaling, exact=as_published, digest=digest, all_train=as_published,
    )  # fmt: skip


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (506, 13) and y; the first 404 rows are Keras' training rows, in its order."""
    path = find(folder, "boston_housing.npz", "boston_housing.csv", "housing.data")
    values = _read(path)
    frames.expect(path, "rows and columns", values.shape, (_ROWS, len(_NAMES) + 1))
    digest = hashlib.sha256(np.rint(values * 1e5).astype("<i8").tobytes()).hexdigest()
    frames.expect(path, "sha256 of its values", digest, _VALUES)
    order = np.arange(_ROWS)
    np.random.RandomState(_SEED).shuffle(order)
    return {"x": values[order, :-1], "y": values[order, -1]}


def _read(path: Path) -> np.ndarray:
    with reading(path):
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as raw:
                return np.column_stack([raw["x"], raw["y"]]).astype(np.float64)
        lines = content(path).decode("ascii").splitlines()
        table = ".csv" in path.suffixes
        return np.loadtxt(lines, delimiter="," if table else None, skiprows=int(table), ndmin=2)
