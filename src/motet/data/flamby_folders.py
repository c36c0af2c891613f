"""Folders of FLamby: a table that says each row's centre and part, beside a table of patients or a folder of images.

The table is called train_test_split, with or without .csv, or train_test_folds.csv, and lies in the folder or in its
dataset_creation_scripts. Its column fold2 is `train_0`, `test_3` and so on: the part, and the centre. Rows are named
by pid (Fed-TCGA-BRCA: brca.csv with pid, features, E and T) or by image (Fed-ISIC2019: jpg files, with target).
Knows this form. Does not know where folders come from. FLamby's four hospitals are the data set `heart`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.client import Column
from motet.data import cached_images
from motet.data.federated import PARTS, DataError, Pool
from motet.data.federation_folders import numbered_classes
from motet.data.files.array_cache import keep, key
from motet.data.files.image_formats import opened
from motet.data.files.local_files import reading, regular
from motet.data.image_folders import VERSION, neutral, shaped, stack
from motet.data.targets import survival_target

if TYPE_CHECKING:
    import pandas as pd

_NAMES = ("train_test_split", "train_test_split.csv", "train_test_folds.csv")
_PLACES = (".", "dataset_creation_scripts")
_COLUMNS = {"pid", "E", "T"}


def load(
    path: str,
    *,
    size: int = 0,  # images: resize all to size x size pixels; 0: they have one size already
    grey: bool = False,  # images: one channel instead of three
) -> Pool:
    """The rows of a folder; clients are its centres, and its test rows stay test rows."""
    folder = Path(path).expanduser()
    split = split_table(folder)
    if split is None:
        raise DataError(f"{path} has no table {' or '.join(_NAMES)} with a column fold2")
    said = split["fold2"].astype(str).str.partition("_")
    if bad := sorted(set(said[0]) - {"train", "test"}):
        raise DataError(f"fold2 of {path} says {bad[0]!r}; expected train_CENTRE or test_CENTRE")
    if (said[2] == "").any():
        raise DataError(f"fold2 of {path} names no centre in a row; expected train_CENTRE or test_CENTRE")
    split = split.assign(part=said[0].map(PARTS.index), centre=said[2])
    return images(folder, split, size, grey) if "image" in split else patients(folder, split)


def holds_flamby(path: Path) -> bool:
    return path.is_dir() and split_table(path) is not None


def split_table(folder: Path) -> pd.DataFrame | None:
    """The table of parts and centres; None where there is none."""
    import pandas as pd

    for file in (folder / place / name for place in _PLACES for name in _NAMES):
        if file.is_file():
            with reading(file, "no table"):
                found = pd.read_csv(regular(file))
            if "fold2" in found and {"pid", "image"} & set(found):
                return found
    return None


def patients(folder: Path, split: pd.DataFrame) -> Pool:
    """Times and events of patients; those whom the table of centres does not name are left out, as in FLamby."""
    import pandas as pd

    tables = [pd.read_csv(regular(f)) for f in sorted(folder.glob("*.csv")) if f.name not in _NAMES]
    found = next((t for t in tables if set(t) >= _COLUMNS), None)
    if found is None:
        raise DataError(
            f"{folder} has no table with the columns {', '.join(sorted(_COLUMNS))}, as brca.csv has"
        )
    found, split = (t.assign(pid=t["pid"].astype(str)) for t in (found, split))
    for table in (found, split):
        if table["pid"].duplicated().any():
            raise DataError(
                f"a pid stands in two rows of a table in {folder}; expected one row for each patient"
            )
    rows = found.merge(split[["pid", "part", "centre"]], on="pid", how="inner")
    check_patients(folder, rows)
    table = rows.drop(columns=[*_COLUMNS, "part", "centre"])
    names, owner = np.unique(rows["centre"].to_numpy(str), return_inverse=True)
    columns = tuple(Column(str(c), "flag" if set(table[c]) <= {0, 1} else "number") for c in table)
    y = survival_target(rows["T"].to_numpy(), rows["E"].to_numpy() == 1)
    x, part = np.ascontiguousarray(table, np.float32), rows["part"].to_numpy(np.int64)
    return Pool(x, y, "survival", (), columns, owner, tuple(map(str, names)), part)


def check_patients(folder: Path, rows: pd.DataFrame) -> None:
    """Every cell must be a number, times 0 or more, and events 0 or 1: the sign of a target says whether it is one."""
    if rows.empty:
        raise DataError(f"no pid of the table of parts in {folder} is one of the table of patients")
    table = rows.drop(columns=["pid", "part", "centre"])
    if wrong := [str(c) for c in table if table[c].dtype.kind not in "fiub"]:
        raise DataError(f"column {wrong[0]} of {folder} holds text; expected numbers")
    if wrong := [str(c) for c in table if not np.isfinite(table[c].to_numpy(np.float64)).all()]:
        raise DataError(
            f"column {wrong[0]} of {folder} has cells without a number.\n"
            "hint: join both tables and read one: data=patients.csv data.missing=mean"
        )
    if (table["T"] < 0).any() or not table["E"].isin([0, 1]).all():
        raise DataError(f"T of {folder} must be 0 or more, and E 0 (last seen alive) or 1 (died)")


def check_targets(folder: Path, split: pd.DataFrame) -> None:
    """Classes must be whole numbers."""
    y = split.get("target")
    if y is None or y.dtype.kind not in "fiu" or not (y.ge(0) & y.mod(1).eq(0)).all():
        raise DataError(
            f"the table of {folder} needs a column target with a class 0, 1, 2, ... for each image"
        )


def images(folder: Path, split: pd.DataFrame, size: int, grey: bool) -> Pool:
    """Images and their classes."""
    check_targets(folder, split)
    there = {f.stem: f for f in sorted(folder.rglob("*.jpg"))}
    files = [there.get(str(name)) for name in split["image"]]
    if lacking := [str(n) for n, f in zip(split["image"], files, strict=True) if f is None]:
        raise DataError(
            f"{folder} has no image {lacking[0]}.jpg, which its table names; {len(lacking)} of {len(split)} lack\n"
            "hint: FLamby's resize_images.py writes them into a folder *_preprocessed: put it beside the table"
        )
    known = [regular(f) for f in files if f is not None]
    facts = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in known]
    text = split.to_csv(index=False)

    def decode() -> dict[str, np.ndarray]:
        def read(i: int) -> np.ndarray:
            return shaped(opened(known[i].read_bytes(), known[i]), known[i], size, grey)

        names, owner = np.unique(split["centre"].to_numpy(str), return_inverse=True)
        part, y = (split[k].to_numpy(np.int64) for k in ("part", "target"))
        return {"x": stack(read, list(map(str, known))), "y": y, "names": names, "owner": owner, "part": part}

    found = keep("flamby", key([VERSION, facts, text, size, grey]), decode)
    classes = numbered_classes(folder, split["target"])
    return cached_images.pool(found, classes, neutral(grey))
