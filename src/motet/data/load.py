"""Finding data by name: a built-in set, a user's file, folder or function, or a set of Hugging Face.

Knows names and options. Does not know what is in the data, nor how clients get their share.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from motet.client.losses import Kind
from motet.data import in_memory, left_out, splits, targets
from motet.data import sets as datasets
from motet.data.federated import DataError, FederatedData, Pool, refuse
from motet.data.federation_folders import holds_federation
from motet.data.flamby_folders import holds_flamby
from motet.data.image_folders import holds_images
from motet.data.partition import DataSettings, partition
from motet.settings import checked, fields_of, import_named
from motet.text import nearest

__all__ = ["DataSettings", "load", "names", "source"]
_FILES = (".csv", ".parquet")
_HUB = "hf:"


def names() -> list[str]:
    """The built-in data sets."""
    return sorted(m.name for m in pkgutil.iter_modules(datasets.__path__) if not m.name.startswith("_"))


def source(name: str) -> Callable[..., Any]:
    """The function that reads the data; its parameters with a default are the data's own options."""
    if name in names():
        return importlib.import_module(f"{datasets.__name__}.{name}").load  # type: ignore[no-any-return]
    if name.startswith(in_memory.GIVEN):
        return in_memory.source(name)  # type: ignore[no-any-return]
    if is_path(name):
        return importlib.import_module(f"motet.data.{reader_of(name)}").load  # type: ignore[no-any-return]
    if ":" in name:
        return import_named(name, DataError)
    raise DataError(
        f"there is no data set {name!r}.\nhint: {nearest(name, names())}; "
        "or a path to a .csv or .parquet file, a folder of them or of images, hf:OWNER/NAME, or module:function"
    )


def load(name: str, options: dict[str, Any] | None = None) -> FederatedData:
    """Every client's data. Of options with the same name, the data set's counts first, then the split's."""
    f = source(name)
    own, common, given = fields_of(f), fields_of(DataSettings), options or {}
    split = given.get("split", {**common, **own}["split"].default)
    how = fields_of(splits.source(split))
    chosen, wrong = checked(given, {**common, **how, **own}, "data", name)
    refuse(wrong)
    words, drawn = {k: chosen[k] for k in own}, "seed" in signature(f).parameters
    words |= {"seed": chosen["seed"]} if drawn else {}
    without = tuple(chosen["without"])
    words |= {"without": without if split in left_out.NATURAL else ()} if "without" in own else {}
    found = f(name, **words) if is_path(name) and name not in names() else f(**words)
    if not isinstance(found, FederatedData):
        shares = {k: chosen[k] for k in how}
        pool = as_pool(found, name, without if split in left_out.NATURAL else ())
        found = partition(name, pool, DataSettings(**{k: chosen[k] for k in common}), shares)
        drawn = drawn or split not in ("auto", "natural") or pool.owner is None
    elif without:
        raise DataError(
            f"{name} returns data that are prepared already, from which data.without cannot take a client back\n"
            "hint: let the function return a Pool, or {client: (x, y)}"
        )
    elif name in names():
        refuse_unused({k: chosen[k] for k in common}, name)
    found.natural, found.left_out = not drawn, without
    return found


def refuse_unused(chosen: dict[str, Any], name: str) -> None:
    """Refuse settings of how rows are divided, where a data set has divided them already."""
    usual = {k: f.default for k, f in fields_of(DataSettings).items() if k not in ("seed", "without")}
    usual |= {"split": "natural"} if chosen["split"] == "natural" else {}
    usual |= {"unseen": 0.0} if chosen["unseen"] == 0 else {}
    usual |= {"scale": "none"} if chosen["scale"] == "none" else {}
    if other := [k for k, v in usual.items() if chosen[k] != v]:
        listed = ", ".join(f"data.{k} = {chosen[k]!r}" for k in other)
        raise DataError(
            f"{name} draws the rows of so many clients when they are needed, and cannot divide them by {listed}\n"
            f"hint: leave {'it' if len(other) == 1 else 'them'} out, or take fewer clients"
        )


def is_path(name: str) -> bool:
    """Whether the name says where data lie: a file, a folder, or a place at Hugging Face."""
    said = name.startswith((_HUB, in_memory.GIVEN)) or name.endswith(_FILES)
    return said or Path(name).is_dir() or (":" not in name and "/" in name)


def reader_of(path: str) -> str:
    """The module that reads this file, folder or set."""
    if path.startswith(_HUB):
        return "huggingface"
    if holds_federation(Path(path).expanduser()):
        return "federation_folders"
    if holds_flamby(Path(path).expanduser()):
        return "flamby_folders"
    return "image_folders" if holds_images(Path(path).expanduser()) else "user_table"


def as_pool(found: Any, name: str, without: tuple[str, ...] = ()) -> Pool:
    """A Pool as it is; {client: (x, y)} as one pool, but for the clients that are left out. For survival, y is a pair
    (times, events)."""
    if isinstance(found, Pool):
        return found
    if not isinstance(found, dict) or not found:
        raise DataError(
            f"{name} returned {type(found).__name__}; expected a Pool, a FederatedData, "
            "or a dict {client: (x, y)} that is not empty"
        )
    refuse(_bad_clients(found))
    found = {str(c): pair for c, pair in found.items()}
    left_out.check_known(without, found)
    left_out.check_some_left(without, found)
    found = {c: pair for c, pair in found.items() if c not in without}
    xs = [np.asarray(x, np.float32) for x, _ in found.values()]
    y, kind, classes = _targets([y for _, y in found.values()])
    owner = np.repeat(np.arange(len(xs)), [len(x) for x in xs])
    return Pool(np.concatenate(xs), y, kind, classes, owner=owner, names=tuple(found), left_out=without)


def _targets(ys: list[Any]) -> tuple[np.ndarray, Kind, tuple[str, ...]]:
    """The targets of all clients: one array each, or for survival one pair of arrays (times, events) each."""
    if not all(map(is_survival, ys)):
        return targets.encode(np.concatenate([np.asarray(y) for y in ys]), "auto")
    times, events = (np.concatenate([np.asarray(y[i]) for y in ys]) for i in (0, 1))
    seen, bad = targets.seen_events(np.asarray(events, object))
    times = np.asarray(times, np.float64)
    wrong = []
    if not (np.isfinite(times) & (times >= 0)).all():
        wrong.append(
            "times of survival must be finite and not negative\nhint: count them from the first visit"
        )
    if bad.any():
        wrong.append(
            f"{int(bad.sum())} events are neither 0 nor 1\nhint: 1 where the event was seen, 0 where it was not"
        )
    refuse(wrong)
    return targets.survival_target(times, seen), "survival", ()


def is_survival(y: Any) -> bool:
    """Whether targets are a pair of arrays, (times, events)."""
    return isinstance(y, tuple) and len(y) == 2 and all(np.ndim(v) == 1 for v in y)


def _bad_clients(found: dict[Any, Any]) -> list[str]:
    wrong, shapes = [], set()
    for client, pair in found.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            wrong.append(f"client {client} has {type(pair).__name__}; expected a pair (x, y)")
            continue
        x, y = np.asarray(pair[0]), np.asarray(pair[1][0] if is_survival(pair[1]) else pair[1])
        if len(x) == 0:
            wrong.append(f"client {client} has no examples")
        elif y.shape != (len(x),):
            wrong.append(f"client {client} has {len(x)} examples and targets of shape {y.shape}")
        shapes.add(x.shape[1:])
    if len(shapes) > 1:
        wrong.append(f"examples have different shapes: {', '.join(map(str, sorted(shapes)))}")
    return wrong
