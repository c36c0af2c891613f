"""Data given as Python objects: frames, arrays and torch Datasets.

They are written once into the cache, under a name made of their content (`given:table-…`, `given:arrays-…`),
so that a run can be continued and verified in another process. Only the owner of the cache may read the files.
Knows objects and files. Does not know what columns mean (user_table.py). No error shows a value.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from motet.atomic import write_atomically
from motet.data import user_table
from motet.data.federated import DataError, refuse
from motet.data.files.array_cache import home, writable

if TYPE_CHECKING:
    import pandas as pd

GIVEN = "given:"
_CELLS = (str, int, float, bool, np.generic)
_RIGHT = "expected a pair of arrays (x, y), a frame, a torch Dataset, or a DataLoader of one"
_PART_KEYS = ("train", "val", "valid", "test")
_PARTS = (
    "motet draws the rows for validation and test (data.val, data.test); rows that have a part already: "
    "a frame with a column that says train, val or test, and data.part"
)


def keep(data: Any, client: str = "") -> dict[str, Any]:
    """Write the data into the cache; the recipe's section that reads them again.

    `client` is the column that will name the client of each row where a dict of frames is given.
    """
    data = partitions_of(data) if hasattr(data, "load_partition") else data
    data = data.to_pandas() if hasattr(data, "to_pandas") else data
    if _is_frame(data):
        return {"name": _keep_table(data)}
    if not isinstance(data, Mapping) or not data:
        raise DataError(
            f"data is {a_type(data)}; expected a name or path, a frame, a dict of frames, (x, y) arrays or torch "
            "Datasets by client, a partitioner of flwr-datasets, or a function\n"
            "hint: data={'east': (x, y), 'west': (x, y)}"
        )
    if len(parts := [k for k in data if k in _PART_KEYS]) == len(data) > 1:
        raise DataError(
            f"data has the keys {' and '.join(parts)}; expected a key for each client\n"
            f"hint: data={{'east': (x, y), 'west': (x, y)}}; {_PARTS}"
        )
    if twice := len(data) - len(set(map(str, data))):
        raise DataError(f"{twice} clients have the same name as another one")
    if all(map(_is_frame, data.values())):
        return {"name": _keep_table(_joined(data, client or "client")), "client": client or "client"}
    return {"name": _keep_arrays({str(k): _pair(str(k), v) for k, v in data.items()})}


def source(name: str) -> Any:
    """The function that reads what was kept under this name."""
    return load_table if name.startswith(f"{GIVEN}table-") else load_arrays


@wraps(user_table.load)
def load_table(name: str, **options: Any) -> Any:
    return user_table.load(str(_found(name, ".parquet")), **options)


def load_arrays(name: str) -> dict[str, tuple[np.ndarray, Any]]:
    with np.load(_found(name, ".npz"), allow_pickle=False) as kept:
        clients = kept["clients"].tolist()
        return {c: (kept[f"x{i}"], _as_given(kept[f"y{i}"])) for i, c in enumerate(clients)}


def _as_given(y: np.ndarray) -> Any:
    """Targets, or (times, events) where two numbers a row were kept."""
    return (y[:, 0], y[:, 1]) if y.ndim == 2 and y.shape[1] == 2 else y


# ---- files ----


def _file(name: str, ending: str) -> Path:
    return home() / "given" / f"{name.removeprefix(GIVEN)}{ending}"


def _found(name: str, ending: str) -> Path:
    if not (file := _file(name, ending)).exists():
        raise DataError(
            f"the data {name} were given as Python objects, and their copy {file} is not there.\n"
            "hint: give the same objects to motet.run or motet.compare again; MOTET_CACHE names the cache"
        )
    return file


def _write(name: str, ending: str, content: bytes) -> str:
    """Put a file in place in one go, for its owner's eyes only, unless it is there already."""
    file = _file(name, ending)
    if not file.exists():
        with FileLock(writable(file.parent) / ".lock"):
            write_atomically(file, content, private=True)
    return name


# ---- frames ----


def _is_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")  # whoever has a frame has imported it
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _joined(frames: Mapping[Any, pd.DataFrame], client: str) -> pd.DataFrame:
    """One frame of all rows, with a column for the client."""
    import pandas as pd

    every = list(dict.fromkeys(c for f in frames.values() for c in f.columns))
    wrong = [f"client {k} has no rows" for k, f in frames.items() if f.empty]
    if client in every:
        wrong.append(f"the frames have a column {client!r} already\nhint: name another one with client=")
    refuse(wrong)
    return pd.concat([f.assign(**{client: str(k)}) for k, f in frames.items()], ignore_index=True)


def _keep_table(frame: pd.DataFrame) -> str:
    import pandas as pd

    frame = frame.reset_index(drop=True).set_axis([str(c).strip() for c in frame.columns], axis=1)
    if twice := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise DataError(f"the frame has several columns called {', '.join(twice)}")
    if frame.empty:
        raise DataError(f"the frame has {len(frame)} rows and {len(frame.columns)} columns; it is empty")
    loose = [c for c in frame.columns if frame[c].dtype == object]
    odd = {c: t for c in loose if (t := _odd(frame[c]))}
    refuse([f"column {c!r} holds {t}; expected numbers, truth values or text" for c, t in odd.items()])
    frame = frame.assign(**{c: frame[c].map(str, na_action="ignore") for c in loose})
    digest = sha256(repr([(c, str(t)) for c, t in frame.dtypes.items()]).encode())
    digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    content = io.BytesIO()
    frame.to_parquet(content)
    return _write(f"{GIVEN}table-{digest.hexdigest()[:16]}", ".parquet", content.getvalue())


def _odd(column: pd.Series) -> str:
    """The type of the first value that no cell of a table can hold, "" if there is none."""
    return next((type(v).__name__ for v in column.dropna() if not isinstance(v, _CELLS)), "")


# ---- partitioners of flwr-datasets ----


def partitions_of(given: Any) -> dict[str, Any]:
    """The partitions of a partitioner, or of the one partitioner of a FederatedDataset: each a frame, or images with
    their targets, by client "0", "1", ..."""
    many = getattr(given, "num_partitions", None)
    if many is None and len(known := dict(getattr(given, "partitioners", {}))) == 1:
        given.load_partition(0)  # it gives the rows to its partitioner
        many = next(iter(known.values())).num_partitions
    if not isinstance(many, int) or many < 1:
        raise DataError(
            f"{a_type(given)} has load_partition and no number of partitions.\n"
            "hint: give one partitioner whose dataset is set, or a FederatedDataset with one partitioner"
        )
    return {str(i): rows_of(given.load_partition(i)) for i in range(many)}


def rows_of(part: Any) -> Any:
    """A partition as a frame, classes by name; a pair (images, targets) where it has a column of images."""
    from motet.data.huggingface import named_frame

    images = [c for c, f in part.features.items() if type(f).__name__ == "Image"]
    if not images:
        return named_frame(part)
    classes = [c for c, f in part.features.items() if type(f).__name__ == "ClassLabel"]
    if len(images) != 1 or len(classes) != 1:
        raise DataError(
            f"the partitions have {len(images)} columns of images and {len(classes)} of classes; expected one of each\n"
            "hint: part.select_columns([...]) before the rows are divided"
        )
    pixels = np.stack([np.asarray(image) for image in part[images[0]]]).astype(np.float32) / 255
    x = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    names = part.features[classes[0]].names
    return x, np.array([names[k] for k in part[classes[0]]])


# ---- arrays and Datasets ----


def _keep_arrays(pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    arrays = {"clients": np.array(list(pairs))}
    for i, (x, y) in enumerate(pairs.values()):
        arrays |= {f"x{i}": x, f"y{i}": y}
    digest = sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return _write(f"{GIVEN}arrays-{digest.hexdigest()[:16]}", ".npz", content.getvalue())


def _pair(client: str, given: Any) -> tuple[np.ndarray, np.ndarray]:
    """One client's examples and targets as arrays; those of survival, a pair (times, events), have two columns."""
    if not isinstance(given, tuple | list):
        given = _examples(client, given)
    if len(given) != 2:
        raise DataError(
            f"client {client} has {a_type(given)} of {len(given)}; expected a pair (x, y)\n"
            "hint: (np.stack(xs), np.array(ys)) of many pairs, or a torch Dataset"
        )
    x, y = (_array(client, part, values) for part, values in zip("xy", given, strict=True))
    if isinstance(given[1], tuple) and y.ndim == 2 and y.shape[0] == 2 and len(x) == y.shape[1]:
        y = y.T  # (times, events)
    if x.dtype.kind not in "fiub":
        raise DataError(f"x of client {client} holds {x.dtype.name}; expected numbers")
    if y.dtype.kind == "O" and any(v is None or v != v for v in y.ravel()):  # NaN differs from itself
        raise DataError(f"y of client {client} lacks some values\nhint: leave these examples out")
    return x.astype(np.float32), y.astype(str) if y.dtype.kind in "OS" else y


def _examples(client: str, dataset: Any) -> tuple[list[Any], list[Any]]:
    """All examples of a torch Dataset, read once."""
    if isinstance(dataset, DataLoader):
        dataset = _dataset_of(client, dataset)
    if isinstance(dataset, Mapping):
        known = ", ".join(k for k in dataset if k in ("x", "y", *_PART_KEYS))
        raise DataError(f"client {client} has a dict{known and f' with {known}'}; {_RIGHT}\nhint: {_PARTS}")
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")) or isinstance(
        dataset, str | bytes
    ):
        raise DataError(f"client {client} has {a_type(dataset)}; {_RIGHT}")
    if _is_frame(dataset):
        raise DataError(
            f"client {client} has a frame, and other clients have something else; expected frames for all"
        )
    by_index = hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)
    items = [dataset[i] for i in range(len(dataset))] if by_index else list(dataset)
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(f"client {client} has {a_type(dataset)} whose items are no pairs (x, y); {_RIGHT}")
    return [_array(client, "x", x) for x, _ in items], [_array(client, "y", y) for _, y in items]


def _dataset_of(client: str, loader: DataLoader[Any]) -> Any:
    """What a loader reads. Batches and their order are motet's own; a loader that reads other rows, or makes something
    else of them, does not stand for its dataset."""
    drawn = getattr(loader, "sampler", None)
    whole = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    whole &= type(drawn) in (SequentialSampler, RandomSampler) or isinstance(loader.dataset, IterableDataset)
    whole &= not isinstance(drawn, RandomSampler) or (
        not drawn.replacement and drawn.num_samples == len(drawn.data_source)
    )
    if not whole:
        odd = loader.batch_sampler if type(drawn) in (SequentialSampler, RandomSampler) else drawn
        raise DataError(
            f"client {client} has a DataLoader that draws rows by {a_type(odd)}; {_RIGHT}\n"
            "hint: loader.dataset for all rows, or torch.utils.data.Subset(loader.dataset, rows) for some"
        )
    if loader.collate_fn not in (default_collate, default_convert):
        raise DataError(
            f"client {client} has a DataLoader with a collate_fn of its own; {_RIGHT}\n"
            "hint: loader.dataset, if its items are pairs (x, y)"
        )
    return loader.dataset


def _array(client: str, part: str, values: Any) -> np.ndarray:
    values = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    try:
        return np.asarray(values)
    except ValueError:
        raise DataError(
            f"{part} of client {client} holds values of different shapes; expected one array"
        ) from None


def a_type(thing: Any) -> str:
    """The type of an object in words; its value is not shown."""
    name = type(thing).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
