"""A run's database: one SQLite file with everything that a run knows about itself.

Rounds, scores of every client, traffic, events and checkpoints go into one transaction, so that
a kill at any moment leaves all of a round or nothing of it. Numbers are buffered until `commit`.
Reports may read it while it is written. What is read has its checksum checked first (store_checks.py): by the run
once, when it is opened, and by anybody else at every reading. Knows SQL. Imports no torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.runs.client_columns import as_column, with_alike
from motet.runs.store_checks import BY_ROUND, Checks, Groups, damage, named_damage
from motet.runs.store_file import FILE as FILE
from motet.runs.store_file import PAGE, open_to_read, open_to_write, readable

if TYPE_CHECKING:
    import pandas as pd

METRICS = (
    "accuracy", "balanced", "auc", "f1", "brier", "ece", "rmse", "mae", "r2", "loss", "own", "cindex", "pinball",
    "deviance",
)  # fmt: skip
OWN = "own"  # the column of a user's own metric
PIECE = 20_000  # rows of a table that are objects of Python at a time
SCORED = ("round", "part", "side", "client", "n", *METRICS)  # columns of scores
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clients (
    client TEXT PRIMARY KEY, seen INTEGER NOT NULL, train INTEGER NOT NULL, val INTEGER NOT NULL,
    test INTEGER NOT NULL, labels TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, seconds REAL NOT NULL, cohort INTEGER NOT NULL,
    up INTEGER NOT NULL, down INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS traffic (
    round INTEGER NOT NULL, client TEXT NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL,
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS asks (
    round INTEGER NOT NULL, client TEXT NOT NULL, verb TEXT NOT NULL, learn TEXT NOT NULL,
    messages INTEGER NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL,
    PRIMARY KEY (round, client, verb, learn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS asked_alike (
    round INTEGER NOT NULL, number INTEGER NOT NULL, verb TEXT NOT NULL, learn TEXT NOT NULL,
    up INTEGER NOT NULL, down INTEGER NOT NULL, many INTEGER NOT NULL, clients BLOB NOT NULL,
    PRIMARY KEY (round, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scores (
    round INTEGER NOT NULL, part TEXT NOT NULL, side TEXT NOT NULL, client TEXT NOT NULL, n INTEGER NOT NULL,
    {", ".join(f"{m} REAL" for m in METRICS)},
    PRIMARY KEY (round, part, side, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    round INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (round, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS privacy (
    round INTEGER NOT NULL, client TEXT NOT NULL, steps INTEGER NOT NULL, noise REAL NOT NULL, rate REAL NOT NULL,
    PRIMARY KEY (round, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (round INTEGER PRIMARY KEY, tree BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint (latest INTEGER NOT NULL, best INTEGER, score REAL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, checksum TEXT NOT NULL) WITHOUT ROWID;
"""


class Store:
    """One run's database, open for writing (by the run) or for reading (by anybody)."""

    def __init__(self, folder: Path, *, writing: bool = False, page: int = PAGE) -> None:
        self.path = Path(folder) / FILE
        if not writing and not self.path.exists():
            raise FileNotFoundError(f"{folder} is not a run: it has no {FILE}")
        self.writing = writing
        self.rows: dict[str, list[Sequence[Any]]] = {table: [] for table in BY_ROUND}
        self.db = open_to_write(self.path, page) if writing else open_to_read(self.path)
        self.checks = Checks(self.db, self.path)
        try:
            self._prepare() if writing else self._check_form()
        except BaseException:
            self.db.close()
            raise

    def _check_form(self) -> None:
        """Whether this is a run, with the tables that it was written with."""
        with readable(self.path):
            if "meta" not in self.checks.tables():
                raise damage(self.path, "it holds no tables of a run")
            for _ in self.checks.groups("schema"):
                pass

    def _prepare(self) -> None:
        """Check all that the file holds, and make the tables that it lacks."""
        with named_damage(self.path):
            self.checks.check_all()
            checked, tables = self.checks.there, self.checks.tables()
            lacking = [m for m in METRICS if m not in self.metrics] if "scores" in tables else []
            renew = checked and self.checks.version == 1
            if (
                checked
                and {"files", "asks", "asked_alike", "privacy"} <= tables
                and not lacking
                and not renew
            ):
                return
            self.db.execute("BEGIN IMMEDIATE")
            if renew:
                self.checks.renew_keeps()
            for statement in SCHEMA.strip().split(";\n"):
                self.db.execute(statement)
            for metric in lacking:  # a run of an earlier version
                self.db.execute(f"ALTER TABLE scores ADD COLUMN {metric} REAL")
            if "meta" in tables and not checked:
                self.event("unchecked", "begun by a version without checksums; what it had was not checked")
            self.checks.begin()
            self.db.commit()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the scores have; fewer in runs of earlier versions."""
        there = self.columns("scores")
        return tuple(m for m in METRICS if m in there)

    # ---- writing ----

    def set_facts(self, **facts: Any) -> None:
        """Remember facts about the run as a whole."""
        self.db.executemany("REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])
        self.checks.touch("meta")

    def event(self, kind: str, text: str) -> None:
        row = self.db.execute("INSERT INTO events VALUES (?, ?, ?)", (time.time(), kind, text)).lastrowid
        self.checks.touch_event(row or 1)

    def clients(self, rows: Iterable[Sequence[Any]]) -> None:
        """(client, seen, train, val, test, {label: count})."""
        held = [(*r[:5], json.dumps(r[5])) for r in rows]
        self.db.executemany("REPLACE INTO clients VALUES (?, ?, ?, ?, ?, ?)", held)
        self.checks.touch("clients")

    def set_files(self, checksums: Mapping[str, str]) -> None:
        """The files that the run wrote beside this one: checksums by path within its folder."""
        self.db.execute("DELETE FROM files")
        self.db.executemany("INSERT INTO files VALUES (?, ?)", sorted(checksums.items()))
        self.checks.touch("files")

    def ended(self, number: int, seconds: float, trained: int, up: int, down: int) -> None:
        """A round has ended: how long it took, how many clients were trained in it, and their bytes up and down."""
        self.rows["rounds"].append((number, seconds, trained, up, down))
        if sum(map(len, self.rows.values())) > PIECE:  # quick rounds between two checkpoints may be thousands
            self.flush()

    def crossed(self, number: int, traffic: Mapping[str, tuple[int, int]]) -> None:
        """(up, down) bytes of each client in a round, scores included; -1: before the first, and the number after the
        last: as the run ends."""
        self.rows["traffic"] += [(number, c, *b) for c, b in traffic.items()]

    def asked(self, number: int, asks: Mapping[tuple[str, str, str], Sequence[int]]) -> None:
        """What clients were asked in a round, as in `crossed`: messages and bytes up and down, by client, verb or job,
        and how much the server learned: average, collect, scores or nothing."""
        self.rows["asks"] += [(number, *key, *counts) for key, counts in asks.items()]

    def asked_alike(
        self, number: int, verb: str, learn: str, up: int, down: int, clients: Sequence[str]
    ) -> None:
        """One message to each of very many clients, all as large: one row, which is shown as a row for each."""
        known = sum(row[0] == number for row in self.rows["asked_alike"])
        row = (number, known, verb, learn, up, down, len(clients), as_column(clients))
        self.rows["asked_alike"].append(row)

    def add_metrics(self, number: int, numbers: dict[str, float]) -> None:
        """What a method says of a round."""
        self.rows["metrics"] += [(number, name, float(value)) for name, value in numbers.items()]

    def spent(self, number: int, steps: Iterable[tuple[str, int, float, float]]) -> None:
        """Private steps of a round: (client, steps, noise multiplier, sampling rate)."""
        self.rows["privacy"] += [(number, *row) for row in steps]

    def private_rounds(self) -> dict[str, int]:
        """In how many rounds each client took private steps."""
        self.flush()
        return dict(self.db.execute("SELECT client, COUNT(*) FROM privacy GROUP BY client"))

    def first_private(self) -> int:
        """The number of the first round with private steps; those that were done again are below -1."""
        return int(self.db.execute("SELECT MIN(-1, COALESCE(MIN(round), -1)) FROM privacy").fetchone()[0])

    def scored(
        self,
        number: int,
        part: str,
        side: str,
        clients: Sequence[str],
        n: Sequence[int],
        metrics: dict[str, Any],
    ) -> None:
        """Scores of some clients: `metrics` has a sequence of numbers for each name."""
        blank = [None] * len(clients)
        columns = [metrics[m].tolist() if m in metrics else blank for m in METRICS]
        many = len(clients)
        rows = zip([number] * many, [part] * many, [side] * many, clients, n, *columns, strict=True)
        self.rows["scores"] += rows

    def forget_scores(self, part: str, side: str) -> None:
        self.flush()
        which = "FROM scores WHERE part = ? AND side = ?"
        found = self.db.execute(f"SELECT DISTINCT round {which}", (part, side))
        self.checks.touch("scores", [number for (number,) in found])
        self.db.execute(f"DELETE {which}", (part, side))

    def checkpoint(
        self,
        latest: int,
        best: int | None,
        score: float | None,
        state: Callable[[int], bytes],
        sound: int | None = None,
    ) -> None:
        """The rounds that can be gone back to; `state` is asked for those that are not stored yet."""
        wanted = {number for number in (latest, best, sound) if number is not None}
        there = {r for (r,) in self.db.execute("SELECT round FROM states")}
        self.db.executemany("DELETE FROM states WHERE round = ?", [(r,) for r in there - wanted])
        new = [(r, state(r)) for r in sorted(wanted - there)]
        self.db.executemany("INSERT INTO states VALUES (?, ?)", new)
        self.db.execute("DELETE FROM checkpoint")
        self.db.execute("INSERT INTO checkpoint VALUES (?, ?, ?)", (latest, best, score))
        self.checks.touch("states", there ^ wanted)
        self.checks.touch("checkpoint")

    def commit(self) -> None:
        self.flush()
        if self.db.in_transaction:
            self.checks.write()
        self.db.commit()

    def flush(self) -> None:
        for table, rows in self.rows.items():
            if rows:
                holes = ", ".join("?" * len(rows[0]))
                named = (
                    f" ({', '.join(SCORED)})" if table == "scores" else ""
                )  # columns may be in another order
                self.db.executemany(f"REPLACE INTO {table}{named} VALUES ({holes})", rows)
                self.checks.touch(table, {row[0] for row in rows})
            rows.clear()

    def forget_unsaved(self) -> None:
        """Go back to the last commit."""
        for rows in self.rows.values():
            rows.clear()
        self.checks.touched.clear()
        self.db.rollback()

    def rewind(self, number: int) -> None:
        """Forget all rounds after `number`."""
        for table in BY_ROUND:
            self.db.execute(f"DELETE FROM {table} WHERE round > ?", (number,))
            self.db.execute("DELETE FROM checks WHERE part = ? AND number > ?", (table, number))

    def abandon(self, number: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], float]:
        """Forget all rounds after `number`, which are done again; return what was asked in them, as `Meter.count` and
        `Alike` have it, and the seconds that they took."""
        self.flush()
        asks = "SELECT client, verb, learn, up, down, messages FROM asks WHERE round > ?"
        rounds = "SELECT DISTINCT round FROM privacy WHERE round > ? ORDER BY round"
        for (after,) in self.db.execute(rounds, (number,)).fetchall():
            spent = self.first_private() - 1  # what left stays spent: as a round before the first one
            self.db.execute("UPDATE privacy SET round = ? WHERE round = ?", (spent, after))
            self.checks.touch("privacy", (spent, after))
        alike = (
            "SELECT clients, verb, learn, up, down FROM asked_alike WHERE round > ? ORDER BY round, number"
        )
        found = [self.db.execute(what, (number,)).fetchall() for what in (asks, alike)]
        (seconds,) = self.db.execute(
            "SELECT TOTAL(seconds) FROM rounds WHERE round > ?", (number,)
        ).fetchone()
        states = [r for (r,) in self.db.execute("SELECT round FROM states WHERE round > ?", (number,))]
        self.db.execute("DELETE FROM states WHERE round > ?", (number,))
        self.checks.touch("states", states)
        self.rewind(number)
        return found[0], found[1], float(seconds)

    def close(self) -> None:
        self.db.close()

    # ---- reading ----

    def facts(self) -> dict[str, Any]:
        with named_damage(self.path):
            return {k: json.loads(v) for k, v in self.read("meta")}

    def files(self) -> dict[str, str]:
        """Checksums of the files beside this one, by path; nothing in runs of earlier versions."""
        return dict(self.read("files"))

    def saved(self) -> tuple[int, int | None, float | None] | None:
        """(latest round, best round, its score), if there is a checkpoint."""
        found = self.read("checkpoint")
        return (found[0][0], found[0][1], found[0][2]) if found else None

    def read(self, table: str) -> list[tuple[Any, ...]]:
        """All rows of a table; a reader checks them, and the run itself did so when it opened the file."""
        with readable(self.path):
            if table not in self.checks.tables():
                return []
            if self.writing:
                return [row[1:] for row in self.checks.select(table)]
            self.db.execute("BEGIN")  # rows and checksums of one moment
            try:
                return self.checks.rows(table)
            finally:
                self.db.rollback()

    def changed_rounds(
        self, table: str, known: Mapping[int, bytes], only: int | None = None
    ) -> tuple[dict[int, bytes], Groups, list[str]]:
        """For who reads again and again: checksums of a table's rounds, the rows of rounds whose checksum is not
        `known`, and what is damaged, in words. Damaged rounds are left out. `only`: of one round."""
        with readable(self.path):
            self.db.execute("BEGIN")  # rows and checksums of one moment
            try:
                return (
                    self.checks.changed(table, known, only) if table in self.checks.tables() else ({}, {}, [])
                )
            finally:
                self.db.rollback()

    def check(self) -> None:
        """Read everything once; raises Damaged."""
        with readable(self.path):
            self.checks.check_all()

    def idle_rounds(self) -> int:
        """How many of the last rounds asked nobody anything."""
        asked = "SELECT MAX(round) FROM rounds WHERE cohort > 0"
        (many,) = self.db.execute(
            f"SELECT COUNT(*) FROM rounds WHERE round > COALESCE(({asked}), -1)"
        ).fetchone()
        return int(many)

    def state(self, number: int) -> bytes:
        """The server's state after a round that can be gone back to."""
        return bytes(dict(self.read("states"))[number])

    def frame(self, table: str) -> pd.DataFrame:
        """One of clients, rounds, traffic, scores, metrics or events, as a data frame."""
        import pandas as pd

        if not self.columns(table):  # runs of earlier versions say nothing of their rounds
            return pd.DataFrame({"round": [], "name": [], "value": []})
        found = list(self.pieces(table))
        return found[0] if len(found) == 1 else pd.concat(found, ignore_index=True)

    def pieces(self, table: str) -> Iterator[pd.DataFrame]:
        """The rows of `frame`, so many at a time, with the same columns; at least one piece, which may be empty.
        A row is some hundred bytes as objects of Python, and a long run has a million of them."""
        columns = self.declared(table)
        if table in ("asks", "traffic") and (alike := self.read("asked_alike")):
            yield with_alike(framed(self.read(table), columns, columns), alike)
            return
        kept = self.with_numbers(columns) if table == "scores" else columns
        rows = self.parts(table)
        with named_damage(self.path):
            yield framed(next(rows, []), columns, kept)
            for some in rows:
                yield framed(some, columns, kept)

    def parts(self, table: str) -> Iterator[list[tuple[Any, ...]]]:
        """As `read`, some rows at a time."""
        with readable(self.path):
            if self.writing:
                rows = self.checks.select(table)
                while some := rows.fetchmany(PIECE):
                    yield [row[1:] for row in some]
                return
            self.db.execute("BEGIN")  # rows and checksums of one moment
            try:
                yield from gathered(rows for _, rows in self.checks.groups(table))
            finally:
                self.db.rollback()

    def with_numbers(self, columns: Collection[str]) -> list[str]:
        """The columns of scores, without metrics that no client has."""
        asked = ", ".join(f"COUNT({c})" for c in columns)
        with readable(self.path):
            rows, *counts = self.db.execute(f"SELECT COUNT(*), {asked} FROM scores").fetchone()
        return [c for c, n in zip(columns, counts, strict=True) if n or not rows]

    def columns(self, table: str) -> list[str]:
        return list(self.declared(table))

    def declared(self, table: str) -> dict[str, str]:
        """The columns of a table, with their kinds."""
        with readable(self.path):
            return {row[1]: row[2] for row in self.db.execute(f"PRAGMA table_info({table})")}


def framed(rows: list[tuple[Any, ...]], columns: dict[str, str], kept: Collection[str]) -> pd.DataFrame:
    """Rows of a table with these columns as a frame, of which some are kept; what has no number is nan."""
    import pandas as pd

    frame = pd.DataFrame.from_records(rows, columns=list(columns), coerce_float=True)[list(kept)]
    return frame.astype({c: float for c in kept if columns[c] == "REAL"})


def gathered(groups: Iterable[list[tuple[Any, ...]]]) -> Iterator[list[tuple[Any, ...]]]:
    """Groups of rows, small ones together."""
    found: list[tuple[Any, ...]] = []
    for rows in groups:
        found += rows
        if len(found) >= PIECE:
            yield found
            found = []
    if found:
        yield found


def metric_of(facts: Mapping[str, Any]) -> str:
    """The name of a run's metric; of a user's own metric `module:function`, where the run wrote it down."""
    found = str(facts.get("metric", "accuracy"))
    return str(facts.get("metric_name") or found) if found == OWN else found
