"""Checksums of the rows of a run's database, so that damaged rows are found before they are used.

A row of the table `checks` covers a group of another table's rows: those of one round, all facts, a few hundred
events. It is written in the transaction that changes the group. So a row that changed, vanished or moved is
noticed, whatever SQLite thinks of the file. Runs of earlier versions have no checksums: they are read unchecked,
and get checksums when they are continued.
Knows tables, groups and SQL. Does not know what the rows mean. Imports no torch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from motet.checksums import checksum, rows_checksum
from motet.errors import Damaged, MotetError

TABLE = """CREATE TABLE IF NOT EXISTS checks (
    part TEXT NOT NULL, number INTEGER NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (part, number)
) WITHOUT ROWID"""
_VERSION = (
    2  # PRAGMA user_version of a database with checksums: 0 in earlier ones, 1 without rounds of `keeps`
)
_EVENTS = 256  # in a group
_KEEPS = "SELECT client, round, checksum, tree FROM keeps ORDER BY client, round"


@dataclass(frozen=True)
class Part:
    """A table: how its rows are put into groups and in which order, in SQL, and what it holds in words."""

    group: str
    key: str
    says: str
    columns: str = "*"
    table: str = ""  # where it is not the part's own name


ROUND = "of round {}"
PARTS = {
    "meta": Part("0", "key", "the facts of the run"),
    "clients": Part("0", "client", "the table of clients"),
    "checkpoint": Part("0", "rowid", "the note which rounds can be gone back to"),
    "files": Part("0", "path", "the list of files"),
    "events": Part(f"(rowid - 1) / {_EVENTS}", "rowid", "events"),
    "rounds": Part("round", "round", f"times and traffic {ROUND}"),
    "traffic": Part("round", "round, client", f"clients' traffic {ROUND}"),
    "asks": Part("round", "round, client, verb, learn", f"clients' traffic by verb {ROUND}"),
    "asked_alike": Part("round", "round, number", f"many clients' traffic by verb {ROUND}"),
    "scores": Part("round", "round, part, side, client", f"scores {ROUND}"),
    "metrics": Part("round", "round, name", f"the method's metrics {ROUND}"),
    "privacy": Part("round", "round, client", f"private steps {ROUND}"),
    "states": Part("round", "round", f"the server's state {ROUND}"),
    "keeps": Part(
        "round", "round, client", "the list of what clients keep since round {}", "client, round, checksum"
    ),
    "schema": Part("0", "name", "the definition of tables", "name, sql", "sqlite_master"),
}
# how versions 1 of databases have them: in one group, whose checksum took as long as there were clients
_KEEPS_BEFORE = Part("0", "client, round", "the list of what clients keep", "client, round, checksum")
BY_ROUND = ("rounds", "traffic", "asks", "asked_alike", "scores", "metrics", "privacy")


Groups = dict[int, list[tuple[Any, ...]]]  # rows by the number of their group


class Checks:
    """The checksums of one open database."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db, self.path = db, path
        self.touched: dict[str, set[int]] = {}  # groups that were changed since the last commit

    # ---- writing ----

    def touch(self, part: str, groups: Iterable[int] = (0,)) -> None:
        self.touched.setdefault(part, set()).update(groups)

    def touch_event(self, row: int) -> None:
        self.touch("events", [(row - 1) // _EVENTS])

    def write(self) -> None:
        """New checksums for all groups that were changed; the caller commits."""
        there = self.tables()
        if "keeps" in there:
            self.touch("keeps", self.changed_keeps())
        for part, groups in self.touched.items():
            for group in sorted(groups) if part in there else ():
                rows = [row[1:] for row in self.select(part, group)]
                self.db.execute("DELETE FROM checks WHERE part = ? AND number = ?", (part, group))
                if rows:
                    self.db.execute("INSERT INTO checks VALUES (?, ?, ?)", (part, group, rows_checksum(rows)))
        self.touched.clear()

    def changed_keeps(self) -> list[int]:
        """Rounds of which clients' states were changed since the last call; all of them if nobody took note."""
        if not self.db.execute("SELECT 1 FROM temp.sqlite_master WHERE name = 'changed_keeps'").fetchone():
            return [number for (number,) in self.db.execute("SELECT DISTINCT round FROM keeps")]
        found = [number for (number,) in self.db.execute("SELECT round FROM changed_keeps")]
        self.db.execute("DELETE FROM changed_keeps")
        return found

    def renew_keeps(self) -> None:
        """Forget the one checksum of all that clients keep, which a database of version 1 has; `begin` gives others."""
        self.db.execute("DELETE FROM checks WHERE part = 'keeps'")
        self.db.execute(f"PRAGMA user_version = {_VERSION}")

    def begin(self) -> None:
        """Give checksums to all that is there; the caller commits."""
        self.db.execute(TABLE)
        if "keeps" in self.tables() and not self.has_keep_checksums():
            self.db.execute("ALTER TABLE keeps ADD COLUMN checksum BLOB")
            for client, number, tree in self.db.execute("SELECT client, round, tree FROM keeps").fetchall():
                given = checksum(client, number, tree), client, number
                self.db.execute("UPDATE keeps SET checksum = ? WHERE client = ? AND round = ?", given)
        for part in self.tables():
            self.touch(part, {row[0] for row in self.select(part)})
        self.write()
        self.db.execute(f"PRAGMA user_version = {_VERSION}")

    # ---- reading ----

    @property
    def there(self) -> bool:
        """Whether this database has checksums."""
        version = self.version
        found = self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'checks'").fetchone()
        if version and not found:
            raise self.damage("its table of checksums is gone")
        return bool(found)

    def rows(self, part: str) -> list[tuple[Any, ...]]:
        """All rows of a table, once their checksums are found to be right."""
        return [row for _, rows in self.groups(part) for row in rows]

    def groups(self, part: str) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """The rows of a table group by group, each checked."""
        known = None
        if self.there:
            found = self.db.execute("SELECT number, checksum FROM checks WHERE part = ?", (part,))
            known = dict(found.fetchall())
        says = self.part(part).says
        for group, numbered in groupby(self.select(part), itemgetter(0)):
            rows = [row[1:] for row in numbered]
            if known is not None and known.pop(group, None) != rows_checksum(rows):
                raise self.damage(f"{says.format(group + 1)}: the checksum does not match")
            yield group, rows
        if known:
            raise self.damage(f"{says.format(min(known) + 1)}: rows are missing")

    def changed(
        self, part: str, known: Mapping[int, bytes], only: int | None = None
    ) -> tuple[dict[int, bytes], Groups, list[str]]:
        """Checksums by group, the rows of those that are not `known`, and what is damaged. Runs of earlier versions
        have no checksums: theirs are computed from what is there."""
        if not self.there:
            grouped = groupby(self.select(part, only), itemgetter(0))
            found = {group: [row[1:] for row in rows] for group, rows in grouped}
            checksums = {group: rows_checksum(rows) for group, rows in found.items()}
            return checksums, {g: rows for g, rows in found.items() if known.get(g) != checksums[g]}, []
        checksums = dict(
            self.db.execute("SELECT number, checksum FROM checks WHERE part = ?", (part,)).fetchall()
        )
        checksums = {g: mark for g, mark in checksums.items() if only in (None, g)}
        rows, wrong = Groups(), list[str]()
        for group in [g for g, mark in checksums.items() if known.get(g) != mark]:
            there = [row[1:] for row in self.select(part, group)]
            if rows_checksum(there) == checksums[group]:
                rows[group] = there
            else:
                wrong.append(f"{self.part(part).says.format(group + 1)}: the checksum does not match")
                del checksums[group]
        return checksums, rows, wrong

    def check_all(self) -> None:
        """Read everything, and the structure of the file too."""
        (said,) = self.db.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            raise self.damage(said.splitlines()[-1])
        if not self.there:
            return
        checked = {part for (part,) in self.db.execute("SELECT DISTINCT part FROM checks")}
        if gone := sorted(checked - self.tables()):
            raise self.damage(f"the table {gone[0]} is gone")
        for part in sorted(self.tables()):
            for _ in self.groups(part):
                pass
        if "keeps" in self.tables():
            for client, number, given, tree in self.db.execute(_KEEPS):
                if given != checksum(client, number, tree):
                    raise self.damage(
                        f"what client {client} kept after round {number + 1}: the checksum does not match"
                    )

    # ---- SQL ----

    def select(self, part: str, group: int | None = None) -> sqlite3.Cursor:
        """Rows of a table with their groups in front; the order of keys keeps groups together."""
        p = self.part(part)
        where = f"{p.group} = {group}" if group is not None else "1"
        if part == "schema":  # `keeps` is made by whoever holds clients' states
            where += " AND type = 'table' AND name <> 'keeps'"
        columns, table = f"{p.group}, {p.columns}", p.table or part
        return self.db.execute(f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {p.key}")

    @property
    def version(self) -> int:
        return int(self.db.execute("PRAGMA user_version").fetchone()[0])

    def part(self, name: str) -> Part:
        return _KEEPS_BEFORE if name == "keeps" and self.version == 1 else PARTS[name]

    def tables(self) -> set[str]:
        """The parts that this database has: runs of earlier versions lack some."""
        found = {name for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {p for p in PARTS if p in found} | {"schema"}

    def has_keep_checksums(self) -> bool:
        return any(row[1] == "checksum" for row in self.db.execute("PRAGMA table_info(keeps)"))

    def damage(self, what: str) -> Damaged:
        return damage(self.path, what)


def damage(path: Path, what: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {what}.\nNothing was read from the damaged part, and nothing goes on from it.\n"
        "hint: restore the file from a copy, or run anew: motet run … --fresh, or in another folder"
    )


@contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """What SQLite says of a damaged file, in words that name the file; a full disk and the like pass through."""
    try:
        yield
    except (sqlite3.Error, OverflowError, MemoryError, ValueError, TypeError) as e:
        if isinstance(e, MotetError) or (isinstance(e, sqlite3.Error) and about_the_disk(e)):
            raise
        raise damage(path, str(e) or type(e).__name__) from e


_DISK = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip


def about_the_disk(e: sqlite3.Error) -> bool:
    """Whether an error is about the disk, the folder or other processes, and not about what the file holds."""
    return (getattr(e, "sqlite_errorcode", 0) & 0xFF) in _DISK
