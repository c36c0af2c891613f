"""Runs whose database a test changes by hand: with checksums that fit, or as earlier versions wrote it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from motet.runs.store import FILE
from motet.runs.store_checks import Checks


@contextmanager
def rewritten(folder: str | Path) -> Iterator[sqlite3.Connection]:
    """The database, to be changed; checksums are made anew."""
    path = Path(folder) / FILE
    with closing(sqlite3.connect(path)) as db:
        yield db
        db.execute("DELETE FROM checks")
        Checks(db, path).begin()
        db.commit()


def without_checksums(folder: str | Path) -> None:
    """Make it as versions before checksums wrote it."""
    with closing(sqlite3.connect(Path(folder) / FILE)) as db:
        db.execute("CREATE TABLE old AS SELECT client, round, tree FROM keeps")
        for table in ("checks", "files", "keeps"):
            db.execute(f"DROP TABLE {table}")
        db.execute(
            "CREATE TABLE keeps (client TEXT NOT NULL, round INTEGER NOT NULL, tree BLOB NOT NULL, "
            "PRIMARY KEY (client, round)) WITHOUT ROWID"
        )
        db.execute("INSERT INTO keeps SELECT * FROM old")
        db.execute("DROP TABLE old")
        db.execute("PRAGMA user_version = 0")
        db.commit()
