"""How long it takes to read a large table and to train on it: 500,000 rows of twelve hospitals, two rounds of an MLP.

    python benchmarks/large_tables.py             clean cells
    python benchmarks/large_tables.py --messy     decimal commas, dates, ids, missing cells

Prints seconds of computing (of all threads) for the whole run, of which for reading, and the largest memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROWS, HOSPITALS = 500_000, 12


def patients(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    numbers = {f"lab{i}": draw.normal(50, 10, rows).round(2) for i in range(8)}
    frame = pd.DataFrame(numbers | {"age": draw.integers(20, 90, rows)})
    frame["sex"] = draw.choice(["f", "m"], rows)
    frame["ward"] = draw.choice(["a", "b", "c", "d", "e"], rows)
    frame["hospital"] = [f"h{i:02}" for i in draw.integers(0, HOSPITALS, rows)]
    frame["outcome"] = (frame["lab0"] + frame["age"] + draw.normal(0, 10, rows) > 105).astype(int)
    return frame


def write(folder: Path, rows: int, messy: bool) -> Path:
    frame, path = patients(rows), folder / "patients.csv"
    if not messy:
        frame.to_csv(path, index=False)
        return path
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta(np.arange(rows) % 3000, "D")
    frame = frame.assign(admitted=days.strftime("%d.%m.%Y"), patient_id=np.arange(rows))
    frame.loc[::9, "lab1"] = np.nan
    frame.to_csv(path, index=False, sep=";", decimal=",", encoding="cp1252", na_rep="?")
    return path


def measured(rows: int, messy: bool) -> dict[str, Any]:
    from motet.data.load import load
    from motet.runs.recipe import read
    from motet.runs.run import run

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), rows, messy)
        words = {"target": "outcome", "client": "hospital"} | ({"missing": "mean"} if messy else {})
        begin = time.process_time()
        load(str(path), words)
        reading = time.process_time() - begin
        settings = [f"data={path}", *(f"data.{k}={v}" for k, v in words.items())]
        begin = time.process_time()
        run(read(None, [*settings, "method=fedavg", "net=mlp", "train.rounds=2"]), Path(folder) / "run")
        whole = time.process_time() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "messy": messy, "seconds": whole, "reading": reading, "MiB": memory}


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=ROWS)
    p.add_argument("--messy", action="store_true")
    given = p.parse_args()
    print(json.dumps({k: round(v, 2) for k, v in measured(given.rows, given.messy).items()}))


if __name__ == "__main__":
    main()
