"""What differs between a run and the same one run again, and between its files and what was written.

Knows tables of runs and checksums. Does not run anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from motet.checksums import file_checksum
from motet.runs.store import Store


def changed_files(folder: Path, known: Mapping[str, str]) -> list[str]:
    """Files of a run that are not as they were written."""
    found = []
    for name, checksum in known.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: is missing")
        elif file_checksum(path.read_bytes()) != checksum:
            found.append(f"{name}: is damaged, or was changed since the run ended")
    return found


def differences(old: Store, new: Store) -> list[str]:
    """In which tables two runs differ; times and facts are not compared."""
    found = []
    scores = "round, part, REPLACE(side, 'local', 'after_training'), client, n, " + ", ".join(old.metrics)
    # earlier versions measured less, and fewer models to compare with
    measured = ", ".join(f"'{side}'" for (side,) in old.db.execute("SELECT DISTINCT side FROM scores"))
    special = {
        "keeps": ("client, round, tree", ""),
        "scores": (scores, f" WHERE side IN ({measured})"),
        "rounds": ("round, cohort", ""),
    }
    traffic = ["traffic"] if counts_scores(old) == counts_scores(new) else []
    for table in ("states", "checkpoint", "keeps", "scores", "rounds", *traffic, "clients"):
        columns, some = special.get(table, ("*", ""))
        rows = [set(s.db.execute(f"SELECT {columns} FROM {table}{some}")) for s in (old, new)]
        if many := len(rows[0] ^ rows[1]):
            found.append(f"{table}: {many} rows differ")
    return found


def counts_scores(store: Store) -> bool:
    """Whether a run's traffic has the bytes of scores, too; runs of earlier versions have not."""
    if "asks" not in store.checks.tables():
        return False
    return bool(store.db.execute("SELECT 1 FROM asks WHERE learn = 'scores' LIMIT 1").fetchone())
