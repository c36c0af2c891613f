"""Examination scores of London schools (ILEA; Goldstein 1991): 15,362 pupils of 139 schools, 28 features.

The clients are the schools. The target is (score - 1) / 69, from 0 to 1, as in the literature on multi-task and
private federated learning (Liu et al. 2022, who standardise by school and test on 30 %: data.scale = "client",
data.test = 0.3). The file is that of the toolbox MALSAR (Zhou et al. 2011). It does not name its columns; here they
are called as in ILEA's description, and flags by its codes, which the values bear out. The last column is 1 throughout.

The data come from the Centre for Multilevel Modelling, University of Bristol; MALSAR states no licence for them.
Knows the file. Does not know how rows are divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np

from motet.data.federated import Pool
from motet.data.files import frames
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import content, find, reading

SOURCES = (
    Remote(
        "school.mat",
        "https://raw.githubusercontent.com/jiayuzhou/MALSAR/fb9751594983df020ddc4f7e4a40520ee7c37989/data/school.mat",
        44_759,
        "57fb3238fdd03a9aa17276e2ce18d9bbb5d128c3261e794fe6233b58b6909068",
    ),
)
FOLDERS = ("school",)
ORIGIN = "the toolbox MALSAR (github.com/jiayuzhou/MALSAR): its file data/school.mat"

_SCHOOLS, _PUPILS = 139, 15_362
_LOWEST, _HIGHEST = 1, 70  # scores
_GROUPS = (  # columns of the file in order; a group of several is one category as flags
    ("year", 3),
    ("free_meals", 1),
    ("band_1", 1),
    ("gender", 2),
    ("band", 3),
    ("ethnic_group", 11),
    ("school_gender", 3),
    ("denomination", 3),
    ("constant", 1),
)
_NAMES = [name if n == 1 else f"{name}={i}" for name, n in _GROUPS for i in range(1, n + 1)]


def load(
    *,
    raw_score: bool = False,  # the score itself, from 1 to 70, instead of (score - 1) / 69
    own_unit: bool = False,  # train on the target as it is, not standardised by rows of all schools
) -> Pool:
    """A table of percentages and flags, and scores; the clients are schools."""
    found = arrays("school")
    return pool(found, raw_score, own_unit)


def pool(found: Mapping[str, np.ndarray], raw_score: bool = False, own_unit: bool = False) -> Pool:
    score = found["score"].astype(np.float64)
    y = score if raw_score else (score - _LOWEST) / (_HIGHEST - _LOWEST)
    names = tuple(f"school-{i:03}" for i in range(1, _SCHOOLS + 1))
    return Pool(
        found["x"].astype(np.float32), y, "numbers", (), frames.columns(_NAMES), found["owner"], names, exact=own_unit
    )  # fmt: skip


def decode(folder: Path) -> dict[str, np.ndarray]:
    """x (15362, 28), the score and the school of each pupil, school by school."""
    from scipy.io import loadmat

    path = find(folder, *(s.file for s in SOURCES))
    raw = BytesIO(content(path, sha256=SOURCES[0].sha256))
    with reading(path, "no MATLAB file"):
        file = loadmat(raw)
        x, y = (list(file[name][0]) for name in "XY")
    frames.expect(path, "schools", len(x), _SCHOOLS)
    values, score = np.concatenate(x), np.concatenate(y)[:, 0]
    frames.expect(path, "rows and columns", values.shape, (_PUPILS, len(_NAMES)))
    owner = np.repeat(np.arange(_SCHOOLS), [len(some) for some in x])
    return {"x": values, "score": score, "owner": owner}
