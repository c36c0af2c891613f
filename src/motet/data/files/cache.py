"""The files of data sets: found in a folder of the user's or downloaded, and decoded once (array_cache.py).

Knows what a data set's module says of its files. Does not know what is in them: the module's `decode` does.

In the cache, `downloads/NAME/` has the downloaded files, and `fetched/NAME.json` says which decoded arrays are used
if MOTET_DATA does not name the files.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from motet.data.federated import DataError
from motet.data.files.array_cache import (
    Arrays,
    files_of,
    flush,
    home,
    keep,
    key,
    opened,
    writable,
)
from motet.data.files.download import Remote, download

__all__ = ["Arrays", "Origin", "Status", "arrays", "fetch", "home", "origin", "size_of", "status"]
OnBytes = Callable[[str, int, int], None]  # (file, bytes so far, bytes of the file)


@dataclass(frozen=True)
class Origin:
    """What a data set's module says of its files."""

    name: str
    sources: tuple[Remote, ...]
    folders: tuple[str, ...]
    sentence: str
    decode: Callable[[Path], dict[str, np.ndarray]]
    version: int

    def within(self, base: Path) -> Path | None:
        """The folder of this data set: in `base`, or `base` itself if it has the name or the files."""
        below = [base / f for f in self.folders if (base / f).is_dir()]
        if below:
            return below[0]
        itself = base.resolve().name in self.folders or any((base / r.file).is_file() for r in self.sources)
        return base if base.is_dir() and itself else None


@dataclass(frozen=True)
class Status:
    """Whether a data set is here, and where."""

    here: bool
    where: Path | None = None
    size: int = 0  # bytes on disk
    how: str = ""  # MOTET_DATA | fetched


def origin(name: str) -> Origin | None:
    """What the data set's module says; None if it has no files, because it is generated or part of a library."""
    module = importlib.import_module(f"motet.data.sets.{name}")
    if not hasattr(module, "decode"):
        return None
    version = getattr(module, "VERSION", 1)
    return Origin(name, module.SOURCES, module.FOLDERS, module.ORIGIN, module.decode, version)


def arrays(name: str) -> Arrays:
    """The arrays of a data set: from the files in MOTET_DATA, or from the files that were fetched."""
    of = _origin(name)
    if folder := _named(of):
        return keep(name, key([of.version, *files_of(folder)]), lambda: of.decode(folder))
    if record := _fetched_record(name):
        decoded = home() / "decoded" / f"{name}-{record['key']}"
        if record["version"] == of.version and (found := opened(decoded)):
            return found
        if (source := Path(record["source"])).is_dir():
            return _decode_and_record(of, source)
    raise DataError(f"data {name!r} is not here.{_how_to_get(of)}")


def fetch(name: str, source: Path | None = None, watch: OnBytes | None = None) -> Path:
    """Download or read the files, and decode them; returns the folder of the decoded arrays.

    Downloaded files stay in `downloads/NAME/`, so that damaged arrays, or a newer motet that decodes in another way,
    do not need the network again. To save space they may be deleted.
    """
    of = _origin(name)
    if source is not None:
        folder = of.within(source) or source
        if not folder.is_dir():
            raise DataError(f"{source} is no folder; expected the folder that holds the files of {name!r}")
        return _decode_and_record(of, folder).folder
    if not of.sources:
        raise DataError(
            f"data {name!r} cannot be downloaded without a login.\nhint: {of.sentence}{_by_hand(of)}"
        )
    folder = writable(home() / "downloads" / name)
    with FileLock(folder / ".lock"):
        for remote in of.sources:
            download(remote, folder, _progress_of(watch, remote))
    return _decode_and_record(of, folder).folder


def status(name: str) -> Status:
    """Whether a data set is here; decodes nothing."""
    if not (of := origin(name)):
        return Status(True)
    if folder := _named(of):
        return Status(True, folder, size_of(folder), "MOTET_DATA")
    if record := _fetched_record(name):
        decoded = home() / "decoded" / f"{name}-{record['key']}"
        if opened(decoded) is not None:
            return Status(True, decoded, size_of(decoded), "fetched")
    return Status(False)


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(size for _, size, _ in files_of(folder))


def _origin(name: str) -> Origin:
    if (of := origin(name)) is None:
        raise DataError(f"data {name!r} has no files: it is always here.\nhint: motet compare data={name}")
    return of


def _named(of: Origin) -> Path | None:
    """The folder of this data set that MOTET_DATA names."""
    base = os.environ.get("MOTET_DATA")
    return of.within(Path(base).expanduser()) if base else None


def _fetched_record(name: str) -> dict[str, Any] | None:
    """What `fetched/NAME.json` says, or None."""
    try:
        record = json.loads((home() / "fetched" / f"{name}.json").read_text())
        return record if {"key", "version", "source"} <= record.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def _decode_and_record(of: Origin, folder: Path) -> Arrays:
    """Decode the files, and write which ones to `fetched/NAME.json`."""
    arrays_key = key([of.version, *files_of(folder)])
    found = keep(of.name, arrays_key, lambda: of.decode(folder))
    file = writable(home() / "fetched") / f"{of.name}.json"
    temporary = file.with_name(f".{of.name}.{os.getpid()}.tmp")
    record = {"key": arrays_key, "version": of.version, "source": str(folder.resolve())}
    flush(temporary, json.dumps(record).encode())
    os.replace(temporary, file)
    return found


def _progress_of(watch: OnBytes | None, remote: Remote) -> Callable[[int, int], None] | None:
    return (lambda done, total: watch(remote.file, done, total or remote.size)) if watch else None


def _how_to_get(of: Origin) -> str:
    """A hint: how to get the data."""
    size = sum(r.size for r in of.sources)  # 0: unknown
    many = f"{size / 1e6:.0f} MB " if size >= 1e6 else f"{size / 1e3:.0f} kB " if size else ""
    hosts = ", ".join(dict.fromkeys(r.host for r in of.sources))
    fetched = f"motet data fetch {of.name} ({many}from {hosts}); " if of.sources else ""
    base = os.environ.get("MOTET_DATA")
    empty = f"; MOTET_DATA is {base} now, and has none of them" if base else ""
    return f"\nhint: {fetched}{of.sentence}{_by_hand(of)}{empty}"


def _by_hand(of: Origin) -> str:
    return (
        f". If you have the files: `motet data fetch {of.name} --from FOLDER`, "
        f"or let MOTET_DATA name a folder that has them in {' or '.join(f'{f}/' for f in of.folders)}"
    )
