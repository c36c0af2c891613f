"""Opening a run's database, also on a disk or in a folder that cannot be written.

SQLite wants to write beside a database in WAL mode even to read it. Where it cannot, the file is opened as one
that nobody changes; if a killed run left a log of changes beside it, both are copied to a temporary folder first.
Knows SQLite's files. Does not know tables.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from motet.errors import RunError
from motet.runs.store_checks import about_the_disk, named_damage

FILE = "run.sqlite"
PAGE = 4096  # bytes of a page, by default
_WAIT = 30.0  # seconds to wait for another process


def open_to_write(path: Path, page: int = PAGE) -> sqlite3.Connection:
    """`page` counts for a new file: SQLite holds 8 bytes in memory for each page that a round writes."""
    with named_damage(path):
        db = sqlite3.connect(path, timeout=_WAIT)
        careful(db)
        db.execute(f"PRAGMA page_size = {page}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing."""
    with readable(path):
        try:
            return opened(path, "mode=ro")
        except sqlite3.OperationalError as e:
            if not about_the_disk(e):
                raise
        log = path.with_name(path.name + "-wal")
        if not (log.is_file() and log.stat().st_size):
            return opened(path, "immutable=1")
        with tempfile.TemporaryDirectory() as scratch:
            for file in (path, log):
                shutil.copyfile(file, Path(scratch) / file.name)
            return in_memory(opened(Path(scratch) / path.name, "mode=rw"))


def merge_log(folder: Path) -> None:
    """Bring a log of changes, which a killed run left, into the database, so that one file holds the run; where
    that cannot be written, or a run is still writing, the log stays."""
    path, log = folder / FILE, folder / f"{FILE}-wal"
    if not (path.is_file() and log.is_file() and log.stat().st_size):
        return
    with suppress(sqlite3.Error), closing(opened(path, "mode=rw")) as db:
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def opened(path: Path, how: str) -> sqlite3.Connection:
    """A connection that has read the file's beginning."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_WAIT)
    try:
        careful(db)
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def in_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    """All of a database, page by page, in memory."""
    copy = sqlite3.connect(":memory:")
    db.backup(copy)
    db.close()
    return copy


def careful(db: sqlite3.Connection) -> None:
    """Let SQLite look at the form of a page before it uses it."""
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("PRAGMA trusted_schema = OFF")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Says in words why a file cannot be read."""
    try:
        with named_damage(path):
            yield
    except (sqlite3.Error, OSError) as e:
        raise RunError(f"cannot read {path}: {e}") from e
