"""One run as pages see it: what of its database can be read, and what cannot, in words.

A run may be written by another process at any moment, so databases are opened for reading alone. Scores are kept in
memory by round under the checksum that the database has for them: a page that is shown again reads what is new.
Knows the store. Does not know how anything is shown. Imports no torch.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import MotetError
from motet.runs.store import Store
from motet.runs.store_checks import Groups
from motet.runs.store_file import FILE

_KEPT = 24  # runs whose scores stay in memory
Stamp = tuple[int, ...]  # changes whenever a database is written


@dataclass(frozen=True)
class ScoredRound:
    """Scores of clients in one round, part and side."""

    clients: tuple[str, ...]
    rows: NDArray[np.int64]  # that each was scored on
    score: NDArray[np.float64]  # by the run's metric

    @property
    def mean(self) -> float:
        """Of clients that have a score."""
        found = self.score[(self.rows > 0) & np.isfinite(self.score)]
        return float(found.mean()) if len(found) else float("nan")

    def of(self, client: str) -> float:
        at = self.places.get(client)
        return float("nan") if at is None or not self.rows[at] else float(self.score[at])

    @property
    def places(self) -> dict[str, int]:
        return places_of(self.clients)


_places: dict[int, tuple[tuple[str, ...], dict[str, int]]] = {}


def places_of(clients: tuple[str, ...]) -> dict[str, int]:
    """Where each client stands; made once for a tuple that many rounds share."""
    found = _places.get(id(clients))
    if found is None or found[0] is not clients:
        if len(_places) > 4 * _KEPT:
            _places.clear()
        _places[id(clients)] = found = clients, {c: i for i, c in enumerate(clients)}
    return found[1]


@dataclass
class RunReading:
    """What could be read of a run."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)
    clients: dict[str, tuple[int, int, int, int, dict[str, int]]] = field(default_factory=dict)
    rounds: list[tuple[Any, ...]] = field(default_factory=list)  # round, seconds, cohort, up, down
    events: list[tuple[float, str, str]] = field(default_factory=list)
    metrics: dict[str, list[tuple[int, float]]] = field(
        default_factory=dict
    )  # what the method says of rounds
    scored: dict[tuple[int, str, str], ScoredRound] = field(default_factory=dict)  # by round, part and side
    unreadable: list[str] = field(default_factory=list)  # what cannot be read, in words
    checksums: dict[int, bytes] = field(default_factory=dict)  # checksums of the rounds of `scored`
    means: dict[tuple[int, str], float] | None = None  # by round and side, where not all scores were read

    @property
    def metric(self) -> str:
        """Nothing before the run has written down what it is."""
        return str(self.facts.get("metric", "accuracy" if self.facts else ""))

    @property
    def better(self) -> int:
        return int(self.facts.get("better", 1))

    @property
    def seen(self) -> list[str]:
        """Clients that take part."""
        return [c for c, row in self.clients.items() if row[0]]

    def curve(self, side: str, part: str = "val") -> list[tuple[int, ScoredRound]]:
        """Scores of all clients, round by round."""
        found = [(r, s) for (r, p, w), s in self.scored.items() if (p, w) == (part, side)]
        return sorted(found, key=lambda pair: pair[0])

    def mean_curve(self, side: str) -> list[tuple[int, float]]:
        """The mean validation score of all clients, round by round."""
        if self.means is None:
            return [(r, s.mean) for r, s in self.curve(side)]
        return sorted((r, value) for (r, s), value in self.means.items() if s == side)

    def reported(self, side: str) -> ScoredRound | None:
        """Test scores of the reported round."""
        return self.scored.get((self.facts.get("reported", -1), "test", side))

    def sides(self, part: str = "val") -> list[str]:
        there = {w for _, p, w in self.scored if p == part}
        order = ("personal", "global", "after_training", "alone", "constant")
        return [s for s in order if s in there] + sorted(there - {*order})


class RunReader:
    """Reads runs, and remembers the last ones."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: OrderedDict[tuple[Path, bool], tuple[Stamp, RunReading]] = OrderedDict()

    def read(self, folder: Path) -> RunReading:
        """All of a run, each round checked."""
        return self._read(folder, brief=False)

    def read_brief(self, folder: Path) -> RunReading:
        """A run among many: mean scores that SQLite computes, unchecked, and the reported round, checked."""
        return self._read(folder, brief=True)

    def _read(self, folder: Path, brief: bool) -> RunReading:
        stamp = stamp_of(folder)
        with self.lock:
            known = self.kept.get((folder, brief))
            if known:
                self.kept.move_to_end((folder, brief))
        if known and known[0] == stamp:
            return known[1]
        found = read_run(folder, known[1] if known else None, brief)
        with self.lock:
            self.kept[folder, brief] = stamp, found
            while len(self.kept) > _KEPT:
                self.kept.popitem(last=False)
        return found


def plain_file(path: Path, within: Path) -> bool:
    """Whether this is a file that lies in a folder also once links are followed: nothing from elsewhere is shown, and
    nobody waits for a pipe."""
    with suppress(OSError, RuntimeError):
        return path.is_file() and path.resolve().is_relative_to(within.resolve())
    return False


def stamp_of(folder: Path) -> Stamp:
    """The times and sizes of a database and its log; 0 where there is none."""
    found: list[int] = []
    for name in (FILE, f"{FILE}-wal"):
        try:
            state = (folder / name).stat()
            # who only reads leaves an empty log behind
            found += [state.st_mtime_ns, state.st_size] if state.st_size else [0, 0]
        except OSError:
            found += [0, 0]
    return tuple(found)


def read_run(folder: Path, before: RunReading | None = None, brief: bool = False) -> RunReading:
    """Everything that pages show of a run. A damaged part is named, and the others are read."""
    run = RunReading(folder)
    try:
        store = Store(folder)
    except (MotetError, OSError) as e:
        run.unreadable.append(first_line(e))
        return run
    with closing(store):
        attempt(run, lambda: run.facts.update(store.facts()))
        attempt(run, lambda: run.rounds.extend(store.read("rounds")))
        if brief:
            attempt(run, lambda: read_means(run, store))
            return run
        attempt(run, lambda: run.clients.update(read_clients(store)))
        attempt(run, lambda: run.events.extend(store.read("events")))
        attempt(run, lambda: read_metrics(run, store))
        attempt(run, lambda: read_scores(run, store, before))
    return run


def read_means(run: RunReading, store: Store) -> None:
    """Means by round and side, and all scores of the reported round."""
    names = store.columns("scores")
    column = f"AVG({run.metric})" if run.metric in names else "NULL"
    sql = f"SELECT round, side, {column} FROM scores WHERE part = 'val' AND n > 0 GROUP BY round, side"
    rows = store.db.execute(sql) if names else []
    run.means = {(r, side): float("nan") if mean is None else mean for r, side, mean in rows}
    reported = run.facts.get("reported")
    if isinstance(reported, int):
        checksums, found, wrong = store.changed_rounds("scores", {}, only=reported)
        run.unreadable += [f"{store.path} is damaged: {text}" for text in wrong]
        add_rounds(run, found, names)


def attempt(run: RunReading, do: Callable[[], Any]) -> None:
    """Read a part; what is wrong with it is written down."""
    try:
        do()
    except (MotetError, OSError, ValueError, TypeError, LookupError) as e:
        run.unreadable.append(first_line(e))


def first_line(e: Exception) -> str:
    return (str(e) or type(e).__name__).splitlines()[0]


def read_clients(store: Store) -> dict[str, tuple[int, int, int, int, dict[str, int]]]:
    rows = store.read("clients")
    return {str(c): (seen, train, val, test, labels_of(text)) for c, seen, train, val, test, text in rows}


def labels_of(text: str) -> dict[str, int]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {str(k): int(v) for k, v in found.items()}
    return {}


def read_metrics(run: RunReading, store: Store) -> None:
    for number, name, value in store.read("metrics"):
        run.metrics.setdefault(str(name), []).append((number, float("nan") if value is None else value))


def read_scores(run: RunReading, store: Store, before: RunReading | None) -> None:
    """Rounds that are new or changed are read; the others are taken from the reading before."""
    known = before.checksums if before and before.metric == run.metric else {}
    names = store.columns("scores")
    checksums, rows, wrong = store.changed_rounds("scores", known)
    run.checksums = checksums
    run.unreadable += [f"{store.path} is damaged: {text}" for text in wrong]
    if before:
        run.scored = {k: s for k, s in before.scored.items() if k[0] in checksums and k[0] not in rows}
    add_rounds(run, rows, names)


def add_rounds(run: RunReading, rows: Groups, names: Sequence[str]) -> None:
    shared: dict[tuple[str, ...], tuple[str, ...]] = {s.clients: s.clients for s in run.scored.values()}
    places = [names.index(n) for n in ("part", "side", "client", "n")]
    at = names.index(run.metric) if run.metric in names else -1
    for number, group in rows.items():
        add_round(run, number, group, places, at, shared)


def add_round(
    run: RunReading,
    number: int,
    rows: Sequence[tuple[Any, ...]],
    places: Sequence[int],
    at: int,
    shared: dict[tuple[str, ...], tuple[str, ...]],
) -> None:
    """Put the rows of a round into arrays; rounds with the same clients share one tuple of names."""
    part_at, side_at, client_at, rows_at = places
    by_side: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for row in rows:
        by_side.setdefault((row[part_at], row[side_at]), []).append(row)
    for (part, side), mine in by_side.items():
        clients = tuple([row[client_at] for row in mine])
        score = [row[at] for row in mine] if at >= 0 else [None] * len(mine)
        run.scored[number, part, side] = ScoredRound(
            shared.setdefault(clients, clients),
            np.array([row[rows_at] for row in mine], dtype=np.int64),
            np.array(score, dtype=np.float64),  # None becomes nan
        )
