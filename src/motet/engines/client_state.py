"""What clients keep: their trees, by client and round, in memory or on disk.

Versions are named by the round that made them. A run can go back to four rounds: the last one that
ended, the best one so far, the last one after which all models were sound, and the last one committed; what none of
them needs is forgotten.
Everything is in one SQLite connection, so that a commit holds all of a round or nothing of it. A tree is stored
with a checksum, which is checked before the tree is used.
Knows trees and rounds. Does not know what is in the trees.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from motet.checksums import checksum
from motet.core import Client, Tree
from motet.engines.give_back import EVERY, give_back
from motet.errors import Damaged
from motet.text import round_name
from motet.wire import WireError, pack, unpack

# The checksum stands before the tree, so that a list of checksums is read without reading the trees.
TABLE = """
CREATE TABLE IF NOT EXISTS keeps (
    client TEXT NOT NULL, round INTEGER NOT NULL, checksum BLOB, tree BLOB NOT NULL, PRIMARY KEY (client, round)
) WITHOUT ROWID"""
# Of each version without its tree, in the order of rounds: what checksums cover, and what is forgotten by round.
INDEX = "CREATE INDEX IF NOT EXISTS keeps_by_round ON keeps (round, client, checksum)"
# Rounds whose versions were changed since the last commit; whoever writes checksums empties it.
CHANGED = "CREATE TEMP TABLE IF NOT EXISTS changed_keeps (round INTEGER PRIMARY KEY)"
_WATCH = [
    f"CREATE TEMP TRIGGER IF NOT EXISTS {what}_keeps AFTER {what} ON main.keeps "
    f"BEGIN INSERT OR IGNORE INTO changed_keeps VALUES ({row}.round); END"
    for what, row in (("INSERT", "NEW"), ("DELETE", "OLD"), ("UPDATE", "NEW"))
]
COLUMNS = "client, round, checksum, tree"
_AT_ONCE = 500  # clients in one statement
_PUT = f"REPLACE INTO keeps ({COLUMNS}) VALUES (?, ?, ?, ?)"


class ClientStates:
    """Trees by client; reads see the newest version, or the newest up to a round."""

    def __init__(self, database: sqlite3.Connection | None = None, *, on_disk: bool = False) -> None:
        self.database = database or sqlite3.connect("" if on_disk else ":memory:")
        self.on_disk = on_disk
        self.round, self.best = -1, -1
        self.sound: int | None = (
            None  # the round to go back to where training diverges, if it is to be tried again
        )
        self.versions: dict[Client, dict[int, Tree]] = {}
        self.fresh: set[tuple[Client, int]] = set()
        for statement in (TABLE, INDEX, CHANGED, *_WATCH):
            self.database.execute(statement)
        self.stored = 0  # on disk: bytes since memory was last given back
        self.several: set[Client] = set()  # on disk: clients with more than one version
        if not on_disk:
            for row in self.database.execute(f"SELECT {COLUMNS} FROM keeps"):
                self.versions.setdefault(row[0], {})[row[1]] = tree_of(*row)
        else:
            many = "SELECT client FROM keeps INDEXED BY keeps_by_round GROUP BY client HAVING COUNT(*) > 1"
            self.several = {client for (client,) in self.database.execute(many)}

    def get(self, client: Client, upto: int | None = None) -> Tree | None:
        """The newest tree, or the newest that a round up to `upto` made; None if there is none."""
        if self.on_disk:
            return self.get_all([client], upto)[0]
        known = self.versions.get(client, {})
        newest = max(known, default=0)
        if upto is not None and newest > upto:
            newest = max((r for r in known if r <= upto), default=newest + 1)
        return known.get(newest)

    def get_all(self, clients: Sequence[Client], upto: int | None = None) -> list[Tree | None]:
        """As `get`, of some clients at once."""
        if not self.on_disk:
            return [self.get(c, upto) for c in clients]
        found: dict[Client, Tree] = {}
        for some in _batches(clients):  # with MAX, SQLite takes the other columns from the row that has it
            rows = self.database.execute(
                f"SELECT client, MAX(round), checksum, tree FROM keeps WHERE client IN ({_holes(some)}) "
                "AND round <= ? GROUP BY client",
                (*some, 1 << 60 if upto is None else upto),
            )
            found |= {row[0]: tree_of(*row) for row in rows}
        return [found.get(c) for c in clients]

    def without(self, clients: Sequence[Client], upto: int) -> int:
        """How many of the clients keep nothing that a round up to `upto` made; no tree is read."""
        if not self.on_disk:
            return sum(all(r > upto for r in self.versions.get(c, ())) for c in clients)
        count = "SELECT COUNT(DISTINCT client) FROM keeps WHERE client IN ({}) AND round <= ?"
        known = 0
        for some in _batches(clients):
            known += int(self.database.execute(count.format(_holes(some)), (*some, upto)).fetchone()[0])
        return len(clients) - known

    @property
    def nothing(self) -> bool:
        """Whether nobody keeps anything."""
        if not self.on_disk:
            return not self.versions
        return self.database.execute("SELECT 1 FROM keeps LIMIT 1").fetchone() is None

    def put(self, client: Client, tree: Tree) -> None:
        """Remember what `client` keeps after its part in the current round."""
        if self.on_disk:
            self.put_all([client], [tree])
            return
        known = self.versions.setdefault(client, {})
        if known and known[max(known)] is tree:
            return
        for r in set(known) - self._needed(known):
            del known[r]
            self.fresh.discard((client, r))
        known[self.round] = tree
        self.fresh.add((client, self.round))

    def put_all(self, clients: Sequence[Client], trees: Sequence[Tree]) -> None:
        """As `put`, of some clients at once."""
        if not self.on_disk:
            for client, tree in zip(clients, trees, strict=True):
                self.put(client, tree)
            return
        for some in _batches(clients):
            self._forget_on_disk(some)
        for client, tree in zip(clients, trees, strict=True):
            row = row_of(client, self.round, tree)
            self.database.execute(_PUT, row)
            self.stored += len(row[3])
        if self.stored > EVERY:
            self.stored = 0
            give_back()

    def begin(self, number: int) -> None:
        self.round = number

    def mark_best(self) -> None:
        """The current round is the best one so far."""
        self.best = self.round

    def forget(self, client: Client) -> None:
        """Forget all that a client kept: it is as one that has just joined."""
        self.database.execute("DELETE FROM keeps WHERE client = ?", (client,))
        self.versions.pop(client, None)
        self.several.discard(client)
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
        back_to = (upto, self.best) if self.sound is None else (upto, self.best, self.sound)
        unneeded = " AND ".join([f"round IS NOT {newest}"] * len(back_to))
        if not self.on_disk:
            self.database.execute(f"DELETE FROM keeps WHERE {unneeded}", back_to)
            return
        self.database.execute("DELETE FROM keeps WHERE round > ? AND round > ?", (upto, self.best))
        for some in _batches(sorted(self.several)):
            which = f"client IN ({_holes(some)})"
            self.database.execute(f"DELETE FROM keeps WHERE {which} AND {unneeded}", (*some, *back_to))
            left = f"SELECT client FROM keeps WHERE {which} GROUP BY client HAVING COUNT(*) > 1"
            self.several -= set(some) - {client for (client,) in self.database.execute(left, some)}

    def _needed(self, rounds: Iterable[int]) -> set[int]:
        """Of the rounds that made versions, those that a run may still go back to."""
        back_to = [self.round - 1, self.best] + ([] if self.sound is None else [self.sound])
        return {max(r for r in rounds if r <= last) for last in back_to if any(r <= last for r in rounds)}

    def _forget_on_disk(self, clients: Sequence[Client]) -> None:
        """Before new versions of some clients are stored: forget those that no round needs that may come back."""
        known: dict[Client, set[int]] = {}
        which = f"client IN ({_holes(clients)})"
        for client, number in self.database.execute(
            f"SELECT client, round FROM keeps WHERE {which}", clients
        ):
            known.setdefault(client, set()).add(number)
        needed = {c: self._needed(rounds) for c, rounds in known.items()}
        gone = [(c, r) for c, rounds in known.items() for r in rounds - needed[c] - {self.round}]
        self.database.executemany("DELETE FROM keeps WHERE client = ? AND round = ?", gone)
        self.several |= {c for c in known if needed[c] - {self.round}}


def _batches(clients: Sequence[Client]) -> Iterator[Sequence[Client]]:
    """As many at a time as one statement takes."""
    return (clients[i : i + _AT_ONCE] for i in range(0, len(clients), _AT_ONCE))


def _holes(values: Sequence[Client]) -> str:
    return ", ".join("?" * len(values))


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
