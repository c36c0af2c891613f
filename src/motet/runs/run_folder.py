"""A run's folder while the run writes it: one process at a time, and errors of the disk in words.

Knows folders, locks and what the system says. Does not know what is written.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from motet.atomic import refuse_links
from motet.errors import RunError
from motet.runs.store_checks import about_the_disk, damage
from motet.runs.store_file import FILE


class Busy(RunError):
    """Another process is writing the run."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, if it is not there and holds no links, and keep other processes from writing it."""
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            yield
    except Timeout as e:
        raise Busy(
            f"another process is writing {folder}.\nhint: wait for it, or choose another folder"
        ) from e


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Says so if the folder cannot be written or the disk is full; the last checkpoint is whole in any case."""
    try:
        yield
    except (OSError, sqlite3.DatabaseError) as e:
        if isinstance(e, sqlite3.DatabaseError) and not about_the_disk(e):
            raise damage(folder / FILE, str(e)) from e
        if isinstance(e, FileNotFoundError) and folder.is_dir():
            raise  # a file of the user's, say a table
        if not folder.is_dir() or not os.access(folder, os.W_OK) or is_closed(e):
            raise RunError(
                f"cannot write to {folder}: {e}.\n"
                f"hint: choose a folder that can be written, with --out (in Python: out=…); if this one can, {FILE} "
                "is damaged, and --fresh runs anew"
            ) from e
        raise RunError(
            f"cannot write to {folder}: {e}.\n"
            "The last checkpoint is intact.\nhint: free some space, then give the same command to continue"
        ) from e


def is_closed(e: Exception) -> bool:
    """Whether SQLite may not write a file; one whose header is damaged looks like that too."""
    closed = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
    return (getattr(e, "sqlite_errorcode", 0) & 0xFF) in closed
