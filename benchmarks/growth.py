"""How time, memory and disk grow with clients, parameters, rounds and actors: measures, and draws pictures.

    python benchmarks/growth.py                       # parameters, rounds and actors, then all pictures
    python benchmarks/growth.py --of rounds           # one of them, then all pictures
    python benchmarks/growth.py --draw                # pictures from what was measured before
    python benchmarks/growth.py --quick               # small sizes, into results/quick/

Clients are W4 of bench.py (results/W4.json). Every point is a process of its own. Times are those of the processor, all
threads together, because they change less with what else a machine does; the median of the rounds after the first.
Writes results/growth.json, and the pictures by growth_pictures.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import growth_pictures
import runs
from whole_runs import Record, conditions, environment
from workloads import WORKS, generate

WORK = "W1"  # its rows are those of parameters, rounds and actors
WIDTHS = (8, 32, 128, 512, 1024)  # of the two hidden layers: 590 to 1.1 million parameters
ROUNDS = (10, 100, 1000)
ACTORS = (1, 2)


def words_of(data: Path, **settings: object) -> list[str]:
    given = {
        "data": "motet_side:federation", "data.work": WORK, "data.folder": data, "method.lr": 0.1,
        "method.epochs": 1, "method.batch": 10, "save.models": "none", **settings,
    }  # fmt: skip
    return [f"{name}={value}" for name, value in given.items()]


def parameters(data: Path, most: int) -> Iterator[Record]:
    """Four rounds of a network with two hidden layers, of growing width."""
    for width in WIDTHS[:most]:
        hidden = {"net": "mlp", "net.hidden": f"[{width},{width}]"}
        count = 30 * width + width + width * width + width + width * 30 + 30
        words = words_of(data, **hidden, **{"train.rounds": 4, "engine.compile": "no"})
        yield {"size": count, **point(words)}


def rounds(data: Path, most: int) -> Iterator[Record]:
    """The same run with more rounds: what a round costs, and what the folder holds."""
    for count in ROUNDS[:most]:
        words = words_of(data, **{"net": "logistic", "train.rounds": count, "train.patience": 0})
        yield {"size": count, **point(words)}


def actors(data: Path, most: int) -> Iterator[Record]:
    """The same run on more actors of a local cluster; nothing where the engine is not installed."""
    if not all(map(importlib.util.find_spec, ("motet.engines.ray", "ray"))):
        print("actors: skipped, the ray engine is not installed", file=sys.stderr)
        return
    for count in ACTORS[:most]:
        cluster = {"net": "logistic", "train.rounds": 4, "engine.name": "ray", "engine.actors": count}
        yield {"size": count, **point(words_of(data, **cluster))}


MEASURED = {"parameters": parameters, "rounds": rounds, "actors": actors}


def point(words: list[str]) -> Record:
    """One run in a process of its own."""
    command = [sys.executable, str(runs.HERE / "growth.py"), "--point", json.dumps(words)]
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(runs.HERE / "sides"), env["PYTHONPATH"]])
    load = os.getloadavg()[0]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    told = json.loads(ran.stdout.splitlines()[-1])
    shown = " ".join(w for w in words if not w.startswith("data.folder"))
    print(shown, told["processor_ms"], "ms a round", file=sys.stderr, flush=True)
    return {
        "command": f"motet run {shown} --trust",
        "date": runs.now(),
        "load_before": round(load, 2),
        **told,
    }


class Laps:
    """Seconds of the processor at the end of every round, those of a local cluster's processes included."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_start(self, trainer: Any) -> None:
        self.used.append(used_here())

    def on_round(self, trainer: Any, seconds: float) -> None:
        self.used.append(used_here())

    def should_stop(self) -> bool:
        return False


def used_here() -> float:
    """Of this process and those that it started."""
    below = psutil.Process().children(recursive=True)
    return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in below)


def one(words: list[str]) -> Record:
    """Run in this process; what a round costs, the peak of memory and the size of the folder."""
    from common import own_peak
    from motet.runs.recipe import read
    from motet.runs.run import run

    laps = Laps()
    with tempfile.TemporaryDirectory() as folder:
        run(read(words=words), folder, laps)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    each = [after - before for before, after in zip(laps.used, laps.used[1:], strict=False)]
    return {
        "processor_ms": round(1000 * median(each[1:] or each), 3), "first_ms": round(1000 * each[0], 1),
        "peak_mib": round(own_peak()), "folder_mib": round(size / 2**20, 3),
    }  # fmt: skip


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", default=",".join(MEASURED), help="parameters, rounds, actors")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before")
    parser.add_argument(
        "--points", type=int, default=9, help="of each curve, from the smallest size (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--data", type=Path, default=runs.HERE / ".data")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.of.split(",")) - set(MEASURED):
        parser.error(f"--of: {', '.join(sorted(unknown))} unknown, expected some of {', '.join(MEASURED)}")
    return asked


def measure(asked: argparse.Namespace, path: Path) -> None:
    """The file is written after every point: what was measured when it is stopped can be drawn."""
    generate(WORKS[WORK], asked.data)
    curves = json.loads(path.read_text())["curves"] if path.exists() else {}
    most = 1 if asked.quick else asked.points
    for name in asked.of.split(","):
        found: list[Record] = []
        for record in MEASURED[name](asked.data.resolve(), most):
            found.append(record)
            curves[name] = {**conditions(), "points": found}
            path.write_text(json.dumps({"curves": curves}, indent=1) + "\n")


def main() -> None:
    asked = asked_for()
    if asked.point:
        print(json.dumps(one(json.loads(asked.point))))
        return
    folder = runs.HERE / "results" / ("quick" if asked.quick else "")
    folder.mkdir(parents=True, exist_ok=True)
    if not asked.draw:
        measure(asked, folder / "growth.json")
    for picture in growth_pictures.draw(folder):
        print(picture)


if __name__ == "__main__":
    main()
