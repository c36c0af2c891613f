"""What clients keep: their trees, by client and round, in memory or on disk.

Versions are named by the round that made them. A run can go back to three rounds: the last one that
ended, the best one so far, and the last one committed; what none of them needs is forgotten.
Everything is in one SQLite connection, so that a commit holds all of a round or nothing of it. A tree is stored
with a checksum, which is checked before the tree is used.
Knows trees and rounds. Does not know what is in the trees.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from motet.checksums import checksum
from motet.core import Client, Tree
from motet.errors import Damaged
from motet.text import round_name
from motet.wire import WireError, pack, unpack

# The checksum stands before the tree, so that a list of checksums is read without reading the trees.
TABLE = """
CREATE TABLE IF NOT EXISTS keeps (
    client TEXT NOT NULL, round INTEGER NOT NULL, checksum BLOB, tree BLOB NOT NULL, PRIMARY KEY (client, round)
) WITHOUT ROWID"""
COLUMNS = "client, round, checksum, tree"
_PUT = f"REPLACE INTO keeps ({COLUMNS}) VALUES (?, ?, ?, ?)"


class ClientStates:
    """Trees by client; reads see the newest version, or the newest up to a round."""

    def __init__(self, database: sqlite3.Connection | None = None, *, on_disk: bool = False) -> None:
        self.database = database or sqlite3.connect("" if on_disk else ":memory:")
        self.on_disk = on_disk
        self.round, self.best = -1, -1
        self.versions: dict[Client, dict[int, Tree]] = {}
        self.fresh: set[tuple[Client, int]] = set()
        self.database.execute(TABLE)
        if not on_disk:
            for row in self.database.execute(f"SELECT {COLUMNS} FROM keeps"):
                self.versions.setdefault(row[0], {})[row[1]] = tree_of(*row)

    def get(self, client: Client, upto: int | None = None) -> Tree | None:
        """The newest tree, or the newest that a round up to `upto` made; None if there is none."""
        if self.on_disk:
            row = self.database.execute(
                f"SELECT {COLUMNS} FROM keeps WHERE client = ? AND round <= ? ORDER BY round DESC LIMIT 1",
                (client, 1 << 60 if upto is None else upto),
            ).fetchone()
            return tree_of(*row) if row else None
        known = self.versions.get(client, {})
        newest = max(known, default=0)
        if upto is not None and newest > upto:
            newest = max((r for r in known if r <= upto), default=newest + 1)
        return known.get(newest)

    @property
    def nothing(self) -> bool:
        """Whether nobody keeps anything, as far as is known without reading the disk."""
        return not self.on_disk and not self.versions

    def put(self, client: Client, tree: Tree) -> None:
        """Remember what `client` keeps after its part in the current round."""
        if self.on_disk:
            self._forget_on_disk(client)
            self.database.execute(_PUT, row_of(client, self.round, tree))
            return
        known = self.versions.setdefault(client, {})
        if known and known[max(known)] is tree:
            return
        for r in set(known) - self._needed(known):
            del known[r]
            self.fresh.discard((client, r))
        known[self.round] = tree
        self.fresh.add((client, self.round))

    def begin(self, number: int) -> None:
        self.round = number

    def mark_best(self) -> None:
        """The current round is the best one so far."""
        self.best = self.round

    def forget(self, client: Client) -> None:
        """Forget all that a client kept: it is as one that has just joined."""
        self.database.execute("DELETE FROM keeps WHERE client = ?", (client,))
        self.versions.pop(client, None)
        self.fresh = {(c, r) for c, r in self.fresh if c != client}

    def rewind(self, number: int) -> None:
        """Forget all that rounds after `number` made."""
        self.database.execute("DELETE FROM keeps WHERE round > ?", (number,))
        for known in self.versions.values():
            for r in [r for r in known if r > number]:
                del known[r]
        self.fresh = {(c, r) for c, r in self.fresh if r <= number}
        self.round = number

    def write(self, upto: int) -> None:
        """Put all versions up to a round into the database, and no others; the caller commits."""
        ready = sorted((c, r) for c, r in self.fresh if r <= upto)
        self.database.executemany(_PUT, (row_of(c, r, self.versions[c][r]) for c, r in ready))
        self.fresh -= set(ready)
        newest = "(SELECT MAX(k.round) FROM keeps k WHERE k.client = keeps.client AND k.round <= ?)"
        self.database.execute(
            f"DELETE FROM keeps WHERE round IS NOT {newest} AND round IS NOT {newest}", (upto, self.best)
        )

    def _needed(self, rounds: Iterable[int]) -> set[int]:
        """Of the rounds that made versions, those that a run may still go back to."""
        ended, best = self.round - 1, self.best
        return {
            max(r for r in rounds if r <= mark) for mark in (ended, best) if any(r <= mark for r in rounds)
        }

    def _forget_on_disk(self, client: Client) -> None:
        rows = self.database.execute("SELECT round FROM keeps WHERE client = ?", (client,)).fetchall()
        rounds = {r for (r,) in rows}
        gone = rounds - self._needed(rounds) - {self.round}
        self.database.executemany(
            "DELETE FROM keeps WHERE client = ? AND round = ?", [(client, r) for r in gone]
        )


def row_of(client: Client, number: int, tree: Tree) -> tuple[Client, int, bytes, bytes]:
    packed = pack(tree)
    return client, number, checksum(client, number, packed), packed


def tree_of(client: Client, number: int, given: bytes | None, packed: bytes) -> Tree:
    """The tree of a stored row; one that is not as it was written is refused."""
    try:
        if given is None or given == checksum(client, number, packed):
            return unpack(packed)
    except WireError:
        pass
    raise Damaged(
        f"what client {client} kept after {round_name(number)} is damaged: its checksum does not match.\n"
        "hint: restore run.sqlite from a copy, or run anew with --fresh"
    )
