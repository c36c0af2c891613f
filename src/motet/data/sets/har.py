"""Human activity (Anguita et al. 2013, UCI): 10,299 windows of a phone's sensors, 30 people, 6 activities."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from motet.client import Column
from motet.data.federated import DataError, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.files.local_files import find, reading

# UCI gives no checksum.
SOURCES = (
    Remote(
        "human+activity+recognition+using+smartphones.zip",
        "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
    ),
)
FOLDERS = ("har", "UCI HAR Dataset", "HAR")
ORIGIN = "Human Activity Recognition Using Smartphones is data set 240 of archive.ics.uci.edu"
CLASSES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")


def decode(folder: Path) -> dict[str, np.ndarray]:
    """Features, classes and people of both parts, which are divided by person; the archive holds another one."""
    path = find(folder, SOURCES[0].file, "UCI HAR Dataset.zip")
    with reading(path, "no zip archive"), zipfile.ZipFile(path) as outer:
        inner = [n for n in outer.namelist() if n.endswith("UCI HAR Dataset.zip")]
        archive = zipfile.ZipFile(io.BytesIO(outer.read(inner[0]))) if inner else outer
        there = {Path(n).name: n for n in archive.namelist() if "/train/" in n or "/test/" in n}
        wanted = [f"{k}_{p}.txt" for p in ("train", "test") for k in ("X", "y", "subject")]
        if lacking := [n for n in wanted if n not in there]:
            raise DataError(f"{path} has no {', '.join(lacking)}.\nhint: it must be UCI's archive, as it is")
        found = {n: np.loadtxt(io.BytesIO(archive.read(there[n])), ndmin=1) for n in wanted}
    x = np.concatenate([found["X_train.txt"], found["X_test.txt"]]).astype(np.float32)
    y, who = (np.concatenate([found[f"{k}_train.txt"], found[f"{k}_test.txt"]]) for k in ("y", "subject"))
    return {"x": x, "y": y.astype(np.int64) - 1, "who": who.astype(np.int64)}


def load() -> Pool:
    """A table of numbers; the clients are the people."""
    found = arrays("har")
    people, owner = np.unique(np.asarray(found["who"]), return_inverse=True)
    names = tuple(f"person-{p:02}" for p in people)
    x = np.asarray(found["x"])
    columns = tuple(Column(f"feature-{i + 1:03}") for i in range(x.shape[1]))
    return Pool(x, np.asarray(found["y"]), "classes", CLASSES, columns, owner.reshape(-1), names)
