"""Cells of the stacking experiments: one partition of one data set with one seed, each in a process of its own.

A cell's result is a JSON file. A cell that has its file is not computed again, so that an experiment that was
stopped goes on. Knows how settings become a table and an outcome. Does not know which figure needs it.

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
from paper_procedure import How, outcomes

from motet.data.federated import Pool
from motet.errors import RunError


@dataclass(frozen=True)
class Cell:
    """One partition of one data set with one seed."""

    data: str
    split: str
    seed: int
    data_options: Mapping[str, Any] = field(default_factory=dict)
    split_options: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0  # of the columns, of each client
    how: Mapping[str, Any] = field(default_factory=dict)  # fields of How
    forests: str = "scikit-learn"  # part of the file's name: earlier results were made by another library's
    rows: int = 0  # a fixed random choice of so many rows of the data; 0: all

    def text(self) -> str:
        return json.dumps({k: v for k, v in vars(self).items() if k != "rows" or v}, sort_keys=True)

    @property
    def file(self) -> str:
        name = hashlib.sha256(self.text().encode()).hexdigest()[:12]
        return f"{self.data}-{self.split}-seed{self.seed}-{name}.json"


def result(cell: Cell) -> dict[str, Any]:
    """The cell's outcomes and what its clients are like, as plain data."""
    from motet.data.load import source

    began = time.process_time()
    pool = some_rows(source(cell.data)(**cell.data_options), cell.rows)
    table = divide(pool, cell.split, cell.seed, cell.share, **cell.split_options)
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in cell.how.items()}
    how = How(**given)
    found = outcomes(table, cell.seed, how)
    numbers = {f"{public} {noise:g}": o.plain() for (public, noise), o in found.items()}
    about = {
        "cpu_seconds": round(time.process_time() - began, 2),
        "notes": list(pool.notes),
        "library": how.library(),
    }
    return {"cell": vars(cell), "clients": about_clients(table), "outcomes": numbers} | about


def some_rows(pool: Pool, many: int) -> Pool:
    """The pool with so many of its rows, always the same ones; all of them if 0 or more than there are."""
    if not many or many >= len(pool.y):
        return pool
    at = np.sort(np.random.Generator(np.random.PCG64(42)).choice(len(pool.y), many, replace=False))
    owner = None if pool.owner is None else pool.owner[at]
    note = f"a fixed random choice of {many} of {len(pool.y)} rows"
    return replace(pool, x=pool.x[at], y=pool.y[at], owner=owner, digest="", notes=[*pool.notes, note])


def about_clients(table: Table) -> dict[str, Any]:
    """Names, sizes, shares of the last class, and how alike the clients' columns are."""
    last = max(table.classes, default=0)
    return {
        "names": list(table.names),
        "rows": [len(r) for r in table.rows],
        "positive": [round(float((table.y[r] == last).mean()), 6) for r in table.rows],
        "alike": alike(table.holds, table.weight).round(6).tolist(),
    }


def perform(
    cells: Sequence[Cell], folder: Path, jobs: int = 2, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """The results of all cells, `jobs` processes at a time; those that have their file are read."""
    folder.mkdir(parents=True, exist_ok=True)
    todo = [u for u in dict.fromkeys(map(Cell.text, cells)) if not (folder / cell_of(u).file).exists()]
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for n, text in enumerate(pool.map(lambda t: _in_a_process(t, folder), todo), 1):
                say(f"{n} of {len(todo)}: {cell_of(text).file}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # those that wait would fail for the same reason
            raise
    return [json.loads((folder / u.file).read_text()) for u in cells]


def cell_of(text: str) -> Cell:
    return Cell(**json.loads(text))


def _in_a_process(text: str, folder: Path) -> str:
    command = [sys.executable, __file__, text, str(folder / cell_of(text).file)]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ["it ended without a message"]
        last = next((n for n, line in enumerate(lines) if "Error: " in line), -1)  # after its traceback
        what = lines[last].rpartition("Error: ")[2] if last >= 0 else lines[-1]
        raise RunError(
            "\n".join([f"cell {cell_of(text).file}: {what}", *(lines[last + 1 :] if last >= 0 else [])])
        )
    return text


def main(text: str, path: str) -> None:
    found = json.dumps(result(cell_of(text)), default=np.ndarray.tolist)
    target = Path(path)
    part = target.with_suffix(".part")  # a cell that was killed leaves no half result
    part.write_text(found)
    part.rename(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
