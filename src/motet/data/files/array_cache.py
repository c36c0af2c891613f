"""A cache of decoded arrays: made once, by one process, and memory-mapped afterwards.

Knows folders, keys and locks. Does not know what the arrays mean, nor where their files came from.

The cache is the folder MOTET_CACHE, or the platform's own place for caches. Its folders
`decoded/NAME-KEY/` have one .npy for each array and a meta.json with sizes, shapes and digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from motet.client.code_cache import private_folder
from motet.data.federated import DataError

_FORM = 1  # version of the layout of these folders


class Arrays(dict[str, np.ndarray]):
    """Read-only, memory-mapped arrays by name."""

    def __init__(self, found: dict[str, np.ndarray], digest: str, folder: Path) -> None:
        super().__init__(found)
        self.digest = digest  # sha256 over the arrays' own digests
        self.folder = folder


def home() -> Path:
    """The cache's folder."""
    if named := os.environ.get("MOTET_CACHE"):
        return Path(named)
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("motet"))


def writable(folder: Path) -> Path:
    """The folder, for this user alone, made if it is not there; refuses one that cannot be written."""
    try:
        private_folder(folder)
        if not os.access(folder, os.W_OK):
            raise PermissionError("no permission to write there")
    except OSError as e:
        raise _unwritable(folder, e) from e
    return folder


def _unwritable(folder: Path, e: OSError) -> DataError:
    return DataError(
        f"{folder} cannot be written: {e}.\nhint: MOTET_CACHE may name another folder for the cache"
    )


def keep(name: str, key: str, decode: Callable[[], dict[str, np.ndarray]]) -> Arrays:
    """The arrays of this key; decoded now, by one process at a time, if they are not in the cache or damaged."""
    base = home() / "decoded"
    with suppress(
        OSError
    ):  # it may be another user's, to be read; one of an earlier motet was open to everybody
        private_folder(base)
    folder = base / f"{name}-{key}"
    if (found := opened(folder)) is not None:
        return found
    with FileLock(writable(base) / f".{name}.lock"):
        if (found := opened(folder)) is not None:
            return found
        for left in base.glob(f".{name}-*.tmp"):  # from a process that was killed: we hold the lock now
            shutil.rmtree(left)
        arrays = decode()
        try:
            _write(folder, arrays)
        except OSError as e:
            raise _unwritable(folder, e) from e
    if (found := opened(folder)) is None:
        raise DataError(f"{folder} cannot be read after it was written.\nhint: empty arrays cannot be mapped")
    return found


def opened(folder: Path) -> Arrays | None:
    """The arrays of a folder; None if it is not there, or not as its meta.json says."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        found = {}
        for name, fact in meta["arrays"].items():
            file = folder / f"{name}.npy"
            if file.stat().st_size != fact["bytes"]:
                return None
            found[name] = np.load(file, mmap_mode="r", allow_pickle=False)
            if [*found[name].shape] != fact["shape"] or str(found[name].dtype) != fact["dtype"]:
                return None
        return Arrays(found, meta["digest"], folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def copies_of_client(client: str) -> tuple[list[Path], list[Path]]:
    """Decoded copies that name a client of theirs so: of a user's own images, and of built-in data sets."""
    folders = [p.parent for p in sorted((home() / "decoded").glob("*/names.npy"))]
    found = [f for f in folders if (arrays := opened(f)) and client in arrays["names"]]
    own = [p for p in found if p.name.startswith(("folder_", "hf_", "flamby-"))]
    return own, [p for p in found if p not in own]


def files_of(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of every file in a folder and its subfolders, in order; keys are made of these."""
    found = []
    for at, below, files in os.walk(folder):
        below[:] = [b for b in below if not b.startswith(".")]
        for file in files:
            if not file.startswith(".") and not file.endswith(".part"):
                fact = os.stat(os.path.join(at, file))
                name = os.path.relpath(os.path.join(at, file), folder)
                found.append((name, fact.st_size, fact.st_mtime_ns))
    return sorted(found)


def key(words: Iterable[Any]) -> str:
    """A short hash of everything that decoded arrays depend on."""
    return hashlib.sha256(json.dumps([_FORM, *words]).encode()).hexdigest()[:16]


def _write(folder: Path, found: dict[str, np.ndarray]) -> None:
    """Write all arrays; the folder gets its name when they are complete."""
    rest = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    rest.mkdir(mode=0o700)
    try:
        facts = {name: _save(rest / f"{name}.npy", array) for name, array in found.items()}
        joined = "".join(f"{name}={facts[name]['sha256']};" for name in sorted(facts))
        meta = {"digest": hashlib.sha256(joined.encode()).hexdigest(), "arrays": facts}
        flush(rest / "meta.json", json.dumps(meta, indent=1).encode())
        if folder.exists():  # it is damaged: move it away before deleting it
            os.rename(folder, Path(f"{rest}.old.tmp"))
            shutil.rmtree(f"{rest}.old.tmp")
        os.rename(rest, folder)
    finally:
        shutil.rmtree(rest, ignore_errors=True)


def _save(file: Path, array: np.ndarray) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    with file.open("wb") as f:
        np.save(f, array, allow_pickle=False)
        f.flush()
        os.fsync(f.fileno())
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)
    shape, size = [*array.shape], file.stat().st_size
    return {"sha256": digest.hexdigest(), "shape": shape, "dtype": str(array.dtype), "bytes": size}


def flush(file: Path, content: bytes) -> None:
    with file.open("wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
