"""Units of the stacking experiments: one partition with one seed, in a process of its own, kept as JSON.

A unit that has its file is not played again, so that an experiment that was stopped goes on.
Knows how settings become a table and an outcome. Does not know which figure asks for them.

    python experiments/stacking/cells.py '{"data": "census", "split": "quantity_skew", ...}' result.json
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from paper_partition import Table, alike, divide
from paper_procedure import How, play

from motet.data.federated import Pool


@dataclass(frozen=True)
class Unit:
    """One partition of one data set with one seed."""

    data: str
    split: str
    seed: int
    data_options: Mapping[str, Any] = field(default_factory=dict)
    split_options: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0  # of the columns, of each client
    how: Mapping[str, Any] = field(default_factory=dict)  # fields of How
    rows: int = 0  # a fixed random choice of so many rows of the data; 0: all

    def text(self) -> str:
        said = {k: v for k, v in vars(self).items() if k != "rows" or v}
        return json.dumps(said, sort_keys=True)

    @property
    def file(self) -> str:
        name = hashlib.sha256(self.text().encode()).hexdigest()[:12]
        return f"{self.data}-{self.split}-seed{self.seed}-{name}.json"


def result(unit: Unit) -> dict[str, Any]:
    """The unit's outcomes and what its clients are like, as plain data."""
    from motet.data.load import source

    began = time.process_time()
    pool = some_rows(source(unit.data)(**unit.data_options), unit.rows)
    table = divide(pool, unit.split, unit.seed, unit.share, **unit.split_options)
    words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in unit.how.items()}
    how = How(**words)
    found = play(table, unit.seed, how)
    outcomes = {f"{public} {noise:g}": o.plain() for (public, noise), o in found.items()}
    about = {"cpu_seconds": round(time.process_time() - began, 2), "notes": list(pool.notes)}
    return {"unit": vars(unit), "clients": portrait(table), "outcomes": outcomes} | about


def some_rows(pool: Pool, many: int) -> Pool:
    """The pool with so many of its rows, always the same ones; all of them if 0 or more than there are."""
    if not many or many >= len(pool.y):
        return pool
    at = np.sort(np.random.Generator(np.random.PCG64(42)).choice(len(pool.y), many, replace=False))
    owner = None if pool.owner is None else pool.owner[at]
    note = f"a fixed random choice of {many} of {len(pool.y)} rows"
    return replace(pool, x=pool.x[at], y=pool.y[at], owner=owner, digest="", notes=[*pool.notes, note])


def portrait(table: Table) -> dict[str, Any]:
    """Names, sizes, shares of the last class, and how alike the clients' columns are."""
    last = max(table.classes, default=0)
    return {
        "names": list(table.names),
        "rows": [len(r) for r in table.rows],
        "positive": [round(float((table.y[r] == last).mean()), 6) for r in table.rows],
        "alike": alike(table.holds, table.weight).round(6).tolist(),
    }


def perform(
    units: Sequence[Unit], folder: Path, jobs: int = 2, told: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """The results of all units, `jobs` processes at a time; those that have their file are read."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = [u for u in dict.fromkeys(map(Unit.text, units)) if not (folder / unit_of(u).file).exists()]
    with ThreadPoolExecutor(jobs) as pool:
        for n, text in enumerate(pool.map(lambda t: _in_a_process(t, folder), todo), 1):
            told(f"{n} of {len(todo)}: {unit_of(text).file}")
    return [json.loads((folder / u.file).read_text()) for u in units]


def unit_of(text: str) -> Unit:
    return Unit(**json.loads(text))


def _in_a_process(text: str, folder: Path) -> str:
    command = [sys.executable, __file__, text, str(folder / unit_of(text).file)]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or ["it ended without a word"]
        last = next((n for n, line in enumerate(said) if "Error: " in line), -1)  # after its traceback
        raise RuntimeError(f"unit {text} failed: " + "\n".join(said[last:]))
    return text


def main(text: str, path: str) -> None:
    found = json.dumps(result(unit_of(text)), default=np.ndarray.tolist)
    target = Path(path)
    half = target.with_suffix(".part")  # a unit that was killed leaves no half result
    half.write_text(found)
    half.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
