"""How long the dashboard's server takes for each page, with many runs of many clients.

    python benchmarks/dashboard.py                  200 runs of 1,000 clients, as the guide says
    python benchmarks/dashboard.py --runs 20

Runs are written by the store itself, with scores drawn by a seed. Each page is asked for in the server's own process
once cold, for a run that nobody asked for before, and then several times; wall time and processor time are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from motet.runs.store import Store
from motet.runs.study_record import StudyRecord
from motet.web.app import application
from motet.web.dashboard import Dashboard
from motet.web.run_index import RunIndex
from motet.web.security import Access

METHODS = ("local", "fedavg", "ditto", "finetune", "fedper", "apfl", "scaffold", "pfedme")
AGAIN = 5  # times that a page is asked for when it was asked for before


def make_run(folder: Path, number: int, clients: int, rounds: int, every: int) -> None:
    """A finished run: scores of personal and global models on validation rows, and test scores at the end."""
    folder.mkdir(parents=True)
    rng, names = np.random.default_rng(number), [f"client-{i:04}" for i in range(clients)]
    method, store = METHODS[number % len(METHODS)], Store(folder, writing=True)
    store.set_facts(
        method=method, data="digits", net="mlp", seed=number // len(METHODS), split=0, status="done", failure="",
        metric="accuracy", better=1, rounds=rounds, reported=rounds - 1, kind="classes", seconds=rounds * 1.5,
        classes=[str(c) for c in range(10)], created=1.79e9 + number, settings={"guard": {"mean": "mean"}},
        recipe="seed = 0\n", engine="vmap", engine_why="made for a measurement", remarks=[], record={},
    )  # fmt: skip
    store.clients([(c, 1, 100, 20, 40, {str(k): int(rng.integers(1, 30)) for k in range(10)}) for c in names])
    sizes, skill = [20] * clients, rng.uniform(0.3, 0.8, clients)
    for r in range(rounds):
        store.ended(r, 1.5, clients, 20_000 * clients, 20_000 * clients)
        store.asked(r, {(c, "train", "average"): (1, 20_000, 20_000) for c in names})
        if r % every == 0 or r == rounds - 1:
            for side, gain in (("personal", 0.15), ("global", 0.1)):
                level = skill + gain * (1 - np.exp(-r / 20)) + rng.normal(0, 0.02, clients)
                metrics = {"accuracy": level, "loss": 1 - level, "balanced": level, "auc": level, "f1": level}
                store.scored(r, "val", side, names, sizes, metrics)
    for side in ("personal", "global"):
        store.scored(rounds - 1, "test", side, names, sizes, {"accuracy": skill, "loss": 1 - skill})
    store.checkpoint(rounds - 1, rounds - 1, 0.9, lambda r: b"state")
    store.commit()
    store.close()


def make_all(base: Path, runs: int, clients: int, rounds: int, every: int) -> None:
    """Eight runs are written, one for each method; the others are copies with facts of their own."""
    for number in range(runs):
        folder = base / f"digits-{METHODS[number % len(METHODS)]}-seed{number // len(METHODS)}-{number:08x}"
        if number < len(METHODS):
            make_run(folder, number, clients, rounds, every)
        else:
            source = next(base.glob(f"digits-{METHODS[number % len(METHODS)]}-seed0-*"))
            shutil.copytree(source, folder)
            store = Store(folder, writing=True)
            store.set_facts(seed=number // len(METHODS), created=1.79e9 + number)
            store.commit()
            store.close()
    folders = sorted(p.name for p in base.glob("digits-*"))[:12]
    jobs = [f"run {i}" for i in range(len(folders))]
    StudyRecord(
        "digits-0123abcd", "digits", 1.79e9, "done", jobs, dict(zip(jobs, folders, strict=True))
    ).write(base)


def pages(base: Path) -> dict[str, list[str]]:
    """Addresses of each kind of page: the first ones are asked for cold, the last one again and again."""
    runs = sorted(p.name for p in base.glob("digits-*"))
    return {
        "list of runs": ["/"],
        "search": ["/?q=ditto+seed3"],
        "studies": ["/studies"],
        "study of 12 runs": ["/studies/digits-0123abcd"],
        "run": [f"/runs/{r}" for r in runs[20:24]],
        "clients, worst first": [f"/runs/{runs[24]}?order=worst"],
        "client": [f"/runs/{r}/client?name=client-0500" for r in runs[25:29]],
        "compare 2": [f"/compare?run={runs[30]}&run={runs[31]}"],
        "models": ["/models"],
        "start": ["/start"],
    }


def timed(client: TestClient, address: str) -> tuple[float, float, int]:
    """Wall time and processor time in milliseconds, and bytes."""
    wall, processor = time.perf_counter(), time.process_time()
    answer = client.get(address)
    assert answer.status_code == 200, (address, answer.status_code, answer.text[:300])
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - processor), len(answer.content)


def measure(base: Path) -> list[dict[str, Any]]:
    access = Access(frozenset({"localhost"}))
    board = Dashboard(RunIndex(base), access)
    with TestClient(application(board, warm=False), base_url="http://localhost") as client:
        began = time.perf_counter()
        board.index.runs()  # as the dashboard does when it starts
        print(f"the index of all runs, once at the start: {1e3 * (time.perf_counter() - began):.0f} ms")
        client.get("/start")  # starts the process that answers
        found = []
        for name, addresses in pages(base).items():
            cold = [timed(client, a) for a in addresses]
            again = [timed(client, addresses[-1]) for _ in range(AGAIN)]
            found.append({
                "page": name, "cold ms": max(c[0] for c in cold), "cold cpu ms": max(c[1] for c in cold),
                "again ms": statistics.median(a[0] for a in again),
                "again cpu ms": statistics.median(a[1] for a in again), "KiB": cold[-1][2] / 1024,
            })  # fmt: skip
    return found


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=200)
    p.add_argument("--clients", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=200)
    p.add_argument("--every", type=int, default=10, help="rounds between two evaluations")
    p.add_argument("--folder", type=Path, help="where the runs are, or go to if there are none")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        base = args.folder or Path(scratch)
        if not any(base.glob("digits-*")):
            make_all(base, args.runs, args.clients, args.rounds, args.every)
        rows = measure(base)
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k} {v:8.1f}" if isinstance(v, float) else f"{v:22}" for k, v in row.items()))


if __name__ == "__main__":
    main()
