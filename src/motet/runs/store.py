"""A run's database: one SQLite file with everything that a run knows about itself.

Rounds, scores of every client, traffic, events and checkpoints go into one transaction, so that
a kill at any moment leaves all of a round or nothing of it. Numbers are buffered until `commit`.
Reports may read it while it is written. Knows SQL. Imports no torch.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "run.sqlite"
METRICS = ("accuracy", "balanced", "auc", "f1", "brier", "ece", "rmse", "mae", "r2", "loss", "own")
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
CREATE TABLE IF NOT EXISTS scores (
    round INTEGER NOT NULL, part TEXT NOT NULL, side TEXT NOT NULL, client TEXT NOT NULL, n INTEGER NOT NULL,
    {", ".join(f"{m} REAL" for m in METRICS)},
    PRIMARY KEY (round, part, side, client)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metrics (
    round INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (round, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (round INTEGER PRIMARY KEY, tree BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS checkpoint (latest INTEGER NOT NULL, best INTEGER, score REAL);
"""


class Store:
    """One run's database, open for writing (by the run) or for reading (by anybody)."""

    def __init__(self, folder: Path, *, writing: bool = False) -> None:
        self.path = Path(folder) / FILE
        if not writing and not self.path.exists():
            raise FileNotFoundError(f"{folder} is not a run: it has no {FILE}")
        target = str(self.path) if writing else f"{self.path.absolute().as_uri()}?mode=ro"
        self.db = sqlite3.connect(target, uri=not writing, timeout=30)
        self.rows: dict[str, list[Sequence[Any]]] = {"rounds": [], "traffic": [], "scores": [], "metrics": []}
        if writing:
            self.db.execute("PRAGMA journal_mode = WAL")
            self.db.execute("PRAGMA synchronous = FULL")
            self.db.executescript(SCHEMA)
            for metric in [m for m in METRICS if m not in self.metrics]:  # a run of an earlier version
                self.db.execute(f"ALTER TABLE scores ADD COLUMN {metric} REAL")

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the scores have; fewer in runs of earlier versions."""
        there = {row[1] for row in self.db.execute("PRAGMA table_info(scores)")}
        return tuple(m for m in METRICS if m in there)

    # ---- writing ----

    def set_facts(self, **facts: Any) -> None:
        """Remember facts about the run as a whole."""
        self.db.executemany("REPLACE INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in facts.items()])

    def event(self, kind: str, text: str) -> None:
        self.db.execute("INSERT INTO events VALUES (?, ?, ?)", (time.time(), kind, text))

    def clients(self, rows: Iterable[Sequence[Any]]) -> None:
        """(client, seen, train, val, test, {label: count})."""
        held = [(*r[:5], json.dumps(r[5])) for r in rows]
        self.db.executemany("REPLACE INTO clients VALUES (?, ?, ?, ?, ?, ?)", held)

    def ended(self, number: int, seconds: float, traffic: dict[str, tuple[int, int]]) -> None:
        """A round has ended: how long it took, and (up, down) bytes of each client in it."""
        up, down = (sum(b[i] for b in traffic.values()) for i in (0, 1))
        self.rows["rounds"].append((number, seconds, len(traffic), up, down))
        self.rows["traffic"] += [(number, c, *b) for c, b in traffic.items()]

    def add_metrics(self, number: int, numbers: dict[str, float]) -> None:
        """What a method says of a round."""
        self.rows["metrics"] += [(number, name, float(value)) for name, value in numbers.items()]

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
        self.db.execute("DELETE FROM scores WHERE part = ? AND side = ?", (part, side))

    def checkpoint(
        self, latest: int, best: int | None, score: float | None, state: Callable[[int], bytes]
    ) -> None:
        """The rounds that can be gone back to; `state` is asked for those that are not stored yet."""
        wanted = {latest} | ({best} if best is not None else set())
        there = {r for (r,) in self.db.execute("SELECT round FROM states")}
        self.db.executemany("DELETE FROM states WHERE round = ?", [(r,) for r in there - wanted])
        new = [(r, state(r)) for r in sorted(wanted - there)]
        self.db.executemany("INSERT INTO states VALUES (?, ?)", new)
        self.db.execute("DELETE FROM checkpoint")
        self.db.execute("INSERT INTO checkpoint VALUES (?, ?, ?)", (latest, best, score))

    def commit(self) -> None:
        self.flush()
        self.db.commit()

    def flush(self) -> None:
        for table, rows in self.rows.items():
            if rows:
                holes = ", ".join("?" * len(rows[0]))
                named = (
                    f" ({', '.join(SCORED)})" if table == "scores" else ""
                )  # columns may be in another order
                self.db.executemany(f"REPLACE INTO {table}{named} VALUES ({holes})", rows)
            rows.clear()

    def forget_unsaved(self) -> None:
        """Go back to the last commit."""
        for rows in self.rows.values():
            rows.clear()
        self.db.rollback()

    def rewind(self, number: int) -> None:
        """Forget all rounds after `number`."""
        for table in ("rounds", "traffic", "scores", "metrics"):
            self.db.execute(f"DELETE FROM {table} WHERE round > ?", (number,))

    def close(self) -> None:
        self.db.close()

    # ---- reading ----

    def facts(self) -> dict[str, Any]:
        return {k: json.loads(v) for k, v in self.db.execute("SELECT key, value FROM meta")}

    def saved(self) -> tuple[int, int | None, float | None] | None:
        """(latest round, best round, its score), if there is a checkpoint."""
        row = self.db.execute("SELECT latest, best, score FROM checkpoint").fetchone()
        return tuple(row) if row else None

    def idle_rounds(self) -> int:
        """How many of the last rounds asked nobody anything."""
        asked = "SELECT MAX(round) FROM rounds WHERE cohort > 0"
        (many,) = self.db.execute(
            f"SELECT COUNT(*) FROM rounds WHERE round > COALESCE(({asked}), -1)"
        ).fetchone()
        return int(many)

    def state(self, number: int) -> bytes:
        """The server's state after a round that can be gone back to."""
        (tree,) = self.db.execute("SELECT tree FROM states WHERE round = ?", (number,)).fetchone()
        return bytes(tree)

    def frame_now(self, table: str) -> pd.DataFrame:
        """As `frame`, with what is still buffered."""
        self.flush()
        return self.frame(table)

    def frame(self, table: str) -> pd.DataFrame:
        """One of clients, rounds, traffic, scores, metrics or events, as a data frame."""
        import pandas as pd

        there = self.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if table == "metrics" and not there:  # runs of earlier versions say nothing of their rounds
            return pd.DataFrame({"round": [], "name": [], "value": []})
        frame = pd.read_sql_query(f"SELECT * FROM {table}", self.db)
        if table != "scores" or frame.empty:
            return frame
        return frame.dropna(axis="columns", how="all")
