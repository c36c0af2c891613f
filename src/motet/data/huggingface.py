"""Data sets of the Hugging Face hub, or written by its library: `hf:OWNER/NAME`, `hf:./folder`.

Knows the library `datasets`, which is imported here alone. Does not know how columns are read (user_table.py) or
images shaped (folders.py).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.data import cached_images, left_out, targets, user_table
from motet.data.federated import DataError, Pool, refuse
from motet.data.files.array_cache import keep, key
from motet.data.files.image_formats import parts
from motet.data.image_folders import VERSION, neutral, shaped, stack
from motet.data.table_files import SourceTable
from motet.data.table_settings import Missing, Names, TableSettings
from motet.errors import need
from motet.text import nearest

if TYPE_CHECKING:
    from datasets import Dataset


def load(
    path: str,
    *,
    target: str = "label",  # the column to predict
    client: str = "",  # the column that names each row's client
    config: str = "",  # the configuration, if there are several
    train_split: str = "train",  # the split that is divided among clients
    test_split: str = "test",  # the split for the server's test set; it may be missing
    kind: str = "auto",  # classes | numbers; of a table's target
    missing: Missing = "refuse",  # empty cells: refuse | mean | median | most_frequent | indicator
    drop: Names = (),  # columns to leave out
    size: int = 0,  # resize all images to size x size pixels; 0: they have one size already
    grey: bool = False,  # one channel instead of three
    without: Names = (),  # clients to leave out, as if the data had never had them
) -> Pool:
    """A data set with a column of images, or a table of numbers and text."""
    splits, notes = _splits(path, config, train_split, test_split, target)
    here = list(splits[0].features)
    wrong = [c for c in (target, client) if c and c not in here]
    refuse([f"{path} has no column {c!r}.\nhint: {nearest(c, here)}" for c in wrong])
    splits = _without(splits, client, without) if client and without else splits
    seen = [c for c in here if type(splits[0].features[c]).__name__ == "Image" and c not in drop]
    if seen:
        made = _images(splits, seen[0], target, client, size, grey)
        left = [c for c in here if c not in (seen[0], target, client, *drop)]
        notes += [f"columns that are not read: {', '.join(left)}"] if left else []
    else:
        named = any(type(s.features[target]).__name__ == "ClassLabel" for s in splits)
        files = [Path(train_split), Path(test_split)][: len(splits)]
        table = SourceTable(_frame(splits), files, list(map(len, splits)))
        how = TableSettings(
            target, client, kind="classes" if named else kind, missing=missing, drop=tuple(drop)
        )
        made = user_table.as_pool(table, how)
    if len(splits) > 1:
        made.part = parts(len(splits[0]), len(splits[1]))
    made.notes += notes
    made.left_out = tuple(without) if client else ()
    return made


def _splits(path: str, config: str, train: str, test: str, target: str) -> tuple[list[Dataset], list[str]]:
    """The training split, and the test split if there is one with targets."""
    found = _open(path.removeprefix("hf:"), config)
    if not hasattr(found, "keys"):  # one split without a name
        return [found], []
    if train not in found:
        raise DataError(f"{path} has no split {train!r}.\nhint: train_split = one of {', '.join(found)}")
    if test not in found:
        return [found[train]], [f"{path} has no split {test!r}: the server has no test set"]
    kind = type(found[test].features.get(target)).__name__
    hidden = kind == "ClassLabel" and -1 in found[test].unique(target)
    if hidden or target not in found[test].features:
        return [found[train]], [f"the split {test!r} of {path} has no targets: it is left out"]
    return [found[train], found[test]], []


def _without(splits: list[Dataset], client: str, without: tuple[str, ...]) -> list[Dataset]:
    """The splits without the rows of some clients."""
    owners = [[targets.name_of(v) for v in split[client]] for split in splits]
    known = {name for of_split in owners for name in of_split}
    left_out.check_known(without, known)
    left_out.check_some_left(without, known)
    kept = [[i for i, name in enumerate(of_split) if name not in without] for of_split in owners]
    return [split.select(rows) for split, rows in zip(splits, kept, strict=True)]


def _open(name: str, config: str) -> Any:
    """The data set of a name or a folder, read by the library."""
    if "/" not in name and not name.startswith(("~", ".")):
        # the library has readers called csv or pandas, which would read what lies in the current folder
        raise DataError(
            f"data 'hf:{name}' names neither a set of the hub nor a folder\nhint: hf:OWNER/NAME, or hf:./{name}"
        )
    need(f"data 'hf:{name}'", "hf", "datasets", error=DataError)
    import datasets

    folder = Path(name).expanduser()
    try:
        if any((folder / f).is_file() for f in ("dataset_dict.json", "state.json")):
            return datasets.load_from_disk(str(folder))
        if name.startswith((".", "/", "~")) and not folder.is_dir():
            raise DataError(f"there is no folder {folder}")
        if folder.is_dir():
            name = os.path.join(os.curdir, folder)
        return datasets.load_dataset(name, config or None)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as e:
        if isinstance(e, DataError):
            raise
        raise DataError(
            f"data 'hf:{name}' cannot be read: {e}.\n"
            "hint: expected hf:OWNER/NAME of huggingface.co/datasets, or hf:./folder; "
            'config = "..." picks a configuration'
        ) from e


def _frame(splits: list[Dataset]) -> Any:
    """All rows as one table; classes by name."""
    import pandas as pd

    return pd.concat([named_frame(split) for split in splits], ignore_index=True)


def named_frame(split: Dataset) -> Any:
    """A split as a table; classes by name."""
    frame = split.to_pandas()
    for column, feature in split.features.items():
        if type(feature).__name__ == "ClassLabel":
            frame[column] = [_word(feature, v) for v in frame[column]]
    return frame


def _word(feature: Any, value: Any) -> str | None:
    """The name of a class; None where it is not known."""
    known = value is not None and value == value and value >= 0
    return str(feature.names[int(value)]) if known else None


def _images(splits: list[Dataset], column: str, target: str, client: str, size: int, grey: bool) -> Pool:
    digests = [s._fingerprint for s in splits]  # the library's own hash of a split
    arrays_key = key([VERSION, digests, column, target, client, size, grey])
    slug = re.sub(r"\W", "_", splits[0].info.dataset_name or "folder")
    found = keep(f"hf_{slug}", arrays_key, lambda: _decode(splits, column, target, client, size, grey))
    return cached_images.pool(found, tuple(map(str, found["classes"])), neutral(grey))


def _decode(
    splits: list[Dataset], column: str, target: str, client: str, size: int, grey: bool
) -> dict[str, np.ndarray]:
    rows = [(s, i) for s in splits for i in range(len(s))]
    names = [f"{column} of row {i + 1} of {s.split}" for s, i in rows]

    def read(i: int) -> np.ndarray:
        split, at = rows[i]
        if (image := split[at][column]) is None:
            raise DataError(f"the {names[i]} is missing")
        return shaped(image, names[i], size, grey)

    found = {"x": stack(read, names)}
    feature, values = splits[0].features[target], np.concatenate([np.asarray(s[target]) for s in splits])
    if type(feature).__name__ == "ClassLabel":
        found |= {"y": values.astype(np.int64), "classes": np.array(feature.names)}
    else:
        found["classes"], found["y"] = np.unique(values.astype(str), return_inverse=True)
    if found["y"].min() < 0:
        raise DataError(f"the target {target!r} is unknown (-1) in {(found['y'] < 0).sum()} rows")
    if client:
        whose = np.concatenate([np.asarray(s[client]).astype(str) for s in splits])
        found["names"], found["owner"] = np.unique(whose, return_inverse=True)
    return found
