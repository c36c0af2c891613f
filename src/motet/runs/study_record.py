"""What a study leaves in the folder of its runs: a small file that says which runs belong together, and how it goes.

    runs/studies/digits-1a2b3c4d.json

The same study goes on in the same file. A lock beside it is held while a process works at the study.
Knows files. Does not know what runs compute. Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct, field

from motet.atomic import refuse_links, write_atomically

FOLDER = "studies"


class StudyRecord(Struct):
    """One study, as its file says."""

    name: str
    data: str = ""
    created: float = 0.0
    status: str = "running"  # running, tuning, done, or stopped
    jobs: list[str] = field(default_factory=list)  # names of all runs, for people
    runs: dict[str, str] = field(default_factory=dict)  # folders of those that began, by name
    failures: dict[str, str] = field(default_factory=dict)
    report: str = ""  # the HTML report in the same folder
    asked: dict[str, Any] = field(default_factory=dict)  # what a file of this study would say
    tune: bool = False  # learning rates are searched first
    elsewhere: bool = False  # another process keeps the record: this one writes none

    @property
    def folders(self) -> list[str]:
        return list(self.runs.values())

    def write(self, base: Path) -> None:
        if self.elsewhere:
            return
        place = base / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / f"{self.name}.json", json.dumps(msgspec.to_builtins(self), indent=1) + "\n")


def name_of_study(data: str, what: Any) -> str:
    """The data's name and a hash of what a study is made of."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(data.replace(":", "-")).stem)[:40]
    return f"{plain}-{sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:8]}"


def lock_of_study(base: Path, name: str) -> Path:
    return base / FOLDER / f"{name}.lock"


@contextmanager
def recorded(base: Path, record: StudyRecord) -> Iterator[None]:
    """Keep the record, and the lock that says that somebody is at it. A second process works without either, and so
    does one that may only read: finished runs can be compared on a disk that nobody can write."""
    refuse_links(base / FOLDER)
    lock = FileLock(lock_of_study(base, record.name), timeout=0)
    try:
        (base / FOLDER).mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (Timeout, OSError):  # runs say themselves what they cannot write
        record.elsewhere = True
    try:
        record.write(base)
        yield
    finally:
        if record.status != "done":
            record.status = "stopped"
        record.write(base)
        lock.release()


def read_studies(base: Path) -> list[StudyRecord]:
    """All studies of a folder, the newest first; files that are no records are left out."""
    found = []
    for file in sorted((base / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError, RecursionError, msgspec.ValidationError):
            if not file.is_file():  # a pipe would be waited for
                continue
            record = msgspec.convert(json.loads(file.read_text()), StudyRecord)
            if record.name == file.stem:
                found.append(record)
    return sorted(found, key=lambda s: -s.created)


def new_record(base: Path, data: str, what: Any, jobs: list[str]) -> StudyRecord:
    """The record of a study; one that was begun keeps when that was."""
    name = name_of_study(data, what)
    before = next((s for s in read_studies(base) if s.name == name), None)
    return StudyRecord(name, data, before.created if before else time.time(), jobs=jobs)
