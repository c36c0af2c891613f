"""Federations that other systems wrote: LEAF's JSON files, and PFLlib's files train/0.npz, test/0.npz and so on.

PFLlib's files are pickles. They are not unpickled: they are read as a list of instructions, from which the bytes of the
two arrays are taken.
Knows these two forms. Does not know data sets.
"""

from __future__ import annotations

import json
import math
import pickletools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from motet.data.federated import PARTS, DataError, Pool
from motet.data.files.local_files import reading, regular

_TYPE = re.compile(r"[a-zA-Z]\d+")  # what numpy calls types
_TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
MOST_UNPACKED = 1 << 30  # bytes of one client's file of PFLlib
MOST_CLASSES = 100_000  # of data that number their classes
_SQUARE = 784  # numbers of an image of 28 x 28, as LEAF writes them
Rows = tuple[str, int, np.ndarray, np.ndarray]  # client, part, x and y


def load(
    path: str,
    *,
    classes: bool = True,  # whether targets are classes 0, 1, 2, ...; else they are numbers
) -> Pool:
    """The rows of a folder; the clients are its users, and its test rows stay test rows."""
    folder = Path(path).expanduser()
    found = list(leaf_rows(folder) if holds_leaf(folder) else pfllib_rows(folder))
    if not found:
        raise DataError(f"{path} has no rows.\nhint: LEAF's files are *.json with users and user_data")
    check_rows(path, found)
    names = tuple(sorted({client for client, *_ in found}))
    place = {name: i for i, name in enumerate(names)}
    x, y = (np.concatenate([rows[k] for rows in found]) for k in (2, 3))
    many = [len(rows[3]) for rows in found]
    owner = np.repeat([place[rows[0]] for rows in found], many)
    part = np.repeat([rows[1] for rows in found], many)
    if not classes:
        return Pool(x, y.astype(np.float64), "numbers", (), (), owner, names, part, scaling="none")
    if y.dtype.kind == "f" and (~np.isfinite(y) | (y != np.rint(y))).any():
        raise DataError(f"the targets in {path} are no whole numbers.\nhint: data.classes=false")
    if y.min() < 0:
        raise DataError(
            f"the targets in {path} run from {y.min():g}, and classes count from 0.\n"
            "hint: data.classes=false if they are numbers; else write classes as 0, 1, 2, ..."
        )
    known = numbered_classes(path, y)
    return Pool(x, y.astype(np.int64), "classes", known, (), owner, names, part, scaling="none")


def numbered_classes(path: object, y: Any) -> tuple[str, ...]:
    """The names 0, 1, 2, ... of classes up to the largest target."""
    if (most := int(y.max())) >= MOST_CLASSES:
        raise DataError(
            f"the targets in {path} run to {most:,}, and classes count from 0; expected at most {MOST_CLASSES:,} "
            "classes.\nhint: data.classes=false if they are numbers; else number classes 0, 1, 2, ..."
        )
    return tuple(map(str, range(most + 1)))


def check_rows(path: str, found: list[Rows]) -> None:
    """All clients' rows must fit together, and each row to its target."""
    first, shape = found[0][0], found[0][2].shape[1:]
    for client, _, x, y in found:
        if y.ndim != 1 or len(x) != len(y):
            raise DataError(
                f"{path}, {client}: x has shape {x.shape} and y {y.shape}; expected one target for each row"
            )
        if x.shape[1:] != shape:
            raise DataError(
                f"{path}: rows of {client} have shape {x.shape[1:]}, and those of {first} {shape}; expected one shape"
            )


def holds_federation(path: Path) -> bool:
    """Whether a folder has the form of LEAF or PFLlib."""
    return path.is_dir() and (holds_leaf(path) or any(path.glob("train/*.npz")))


def holds_leaf(path: Path) -> bool:
    files = [*path.glob("*.json"), *path.glob("train/*.json")]
    return any(b'"user_data"' in beginning(f) for f in [f for f in files if f.is_file()][:2])


def beginning(file: Path) -> bytes:
    """The first 16 MiB."""
    with file.open("rb") as opened:
        return opened.read(1 << 24)


# ---- LEAF ----


def leaf_rows(folder: Path) -> Iterator[Rows]:
    """Rows of every file: in train/ and test/ as these say, else undecided."""
    for below, part in (("train", PARTS.index("train")), ("test", PARTS.index("test")), (".", -1)):
        for file in sorted((folder / below).glob("*.json")):
            with reading(file, "no JSON file"):
                content = json.loads(
                    regular(file, share=4).read_text("utf8")
                )  # numbers take more room than their text
            if not isinstance(content, dict) or "user_data" not in content:
                continue
            for user, rows in leaf_users(content["user_data"], file):
                y = leaf_numbers(rows["y"], file, user, "y", np.float64)
                if len(y):
                    yield user, part, leaf_features(rows["x"], file, user), y


def leaf_users(users: Any, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for user, rows in users.items() if isinstance(users, dict) else [("user_data", users)]:
        if not isinstance(rows, dict) or not {"x", "y"} <= set(rows):
            raise DataError(
                f'{file}, {user}: expected {{"x": rows, "y": targets}}, as LEAF has for each user'
            )
        yield str(user), rows


def leaf_features(x: list[Any], file: Path, user: str) -> np.ndarray:
    found = leaf_numbers(x, file, user, "x", np.float32)
    return found.reshape(-1, 1, 28, 28) if found.ndim == 2 and found.shape[1] == _SQUARE else found


def leaf_numbers(given: list[Any], file: Path, user: str, what: str, kind: Any) -> np.ndarray:
    try:
        return np.asarray(given, kind)
    except (TypeError, ValueError, OverflowError) as e:
        rows = "rows of numbers of one length" if what == "x" else "numbers"
        raise DataError(
            f"{file}, user {user}: {what} holds no {rows}.\n"
            "hint: texts of LEAF are read from a table: write one row per text, and data.text=COLUMN"
        ) from e


# ---- PFLlib ----


def pfllib_rows(folder: Path) -> Iterator[Rows]:
    files = [(part, f) for part in ("train", "test") for f in (folder / part).glob("*.npz")]
    width = max((len(f.stem) for _, f in files), default=1)
    for part, file in sorted(files):
        x, y = two_arrays(file)
        if len(y):
            yield f"client-{file.stem:>0{width}}", PARTS.index(part), x.astype(np.float32), y


def two_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """x and y of a file that holds {"x": array, "y": array} as a pickle."""
    with reading(path, "no .npz file"), zipfile.ZipFile(regular(path)) as archive:
        with archive.open("data.npy") as packed:
            raw = packed.read(MOST_UNPACKED + 1)
        if len(raw) > MOST_UNPACKED:
            raise DataError(
                f"{path} unpacks to more than {MOST_UNPACKED:,} bytes, the most for one client.\n"
                "hint: divide its rows among more clients"
            )
        found = arrays_in(raw[10 + int.from_bytes(raw[8:10], "little") :])
    # The empty bytes of two arrays without rows are in a pickle once.
    if found and not any(a.size for a in found.values()):
        return np.zeros((0, 1)), np.zeros(0)
    if set(found) != {"x", "y"}:
        raise DataError(
            f"{path} holds {len(found)} arrays x or y that can be read without running code; expected both.\n"
            "hint: write them as numpy arrays: {'x': float32, 'y': int64}"
        )
    return found["x"], found["y"]


def arrays_in(pickled: bytes) -> dict[str, np.ndarray]:
    """The arrays x and y whose bytes a pickle holds. Before its bytes, an array has its name in the dict, its shape,
    its type, the order of a number's bytes, and whether the first index runs fastest (Fortran's order)."""
    found: dict[str, np.ndarray] = {}
    whole: list[int] = []
    name = kind = ""
    order, fortran = "<", None
    for code, value, _ in pickletools.genops(pickled):
        if code.name in ("NEWTRUE", "NEWFALSE"):
            fortran = code.name == "NEWTRUE"
        elif isinstance(value, int) and not isinstance(value, bool):
            whole.append(value)
        elif isinstance(value, str):
            name = value if value in ("x", "y") else name
            order = value if value in ("<", ">", "|") else order
            kind = (value if value in _TYPES else "") if _TYPE.fullmatch(value) else kind
        elif isinstance(value, bytes) and kind and fortran is not None:
            found[name] = array_of(value, np.dtype(order + kind), whole, fortran)
            whole, fortran = [], None
    return found


def array_of(raw: bytes, kind: np.dtype[Any], numbers: list[int], fortran: bool) -> np.ndarray:
    """The array of these bytes; its shape is among the pickle's numbers."""
    flat = np.frombuffer(raw, kind).astype(kind.newbyteorder("="))
    shape = next((s for s in shapes(numbers) if math.prod(s) == len(flat)), (len(flat),))
    return flat.reshape(shape, order="F" if fortran else "C")


def shapes(numbers: list[int]) -> Iterator[tuple[int, ...]]:
    """Possible shapes among a pickle's numbers: an array's own follows the number 1, the version of its form."""
    for first in (i + 1 for i, n in enumerate(numbers) if n == 1):
        for length in (4, 3, 2, 1):
            found = tuple(numbers[first : first + length])
            if len(found) == length and min(found) >= 0:
                yield found
