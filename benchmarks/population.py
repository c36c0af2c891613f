"""How a run grows with the number of clients: seconds, memory and the size of its folder.

    python benchmarks/population.py                        # 100, 10,000, 100,000 and 1,000,000 clients, 1,000 a round
    python benchmarks/population.py --full 1000000         # one round of everybody
    python benchmarks/population.py --resnet               # ResNet-18 with 20 and 200 clients, states on disk; and with
                                                           # 20 clients as many visits as 200 clients have
    python benchmarks/population.py --draw docs/pictures/population.svg

Every run has a process of its own, one after another. W1 of benchmarks/README.md: logistic regression 30→30, 210
training rows, batches of 10, 5 epochs, learning rate 0.1; Ditto, so every client that trained keeps a model of its own.
Seconds a round are the median without the first two rounds: wall time, and processor time, which other programs
disturb less. Peak memory is the resident memory of the process. Results are added to benchmarks/.data/population.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / ".data" / "population.json"
W1 = ["data=synthetic", "net=logistic", "method=ditto", "method.lr=0.1", "method.batch=10", "method.epochs=5"]
RESNET = [
    "data=population:images", "net=resnet18", "net.norm=group", "method=ditto", "method.lr=0.001", "method.batch=2",
    "method.epochs=1", "engine.name=threads", "engine.keep=disk",
]  # fmt: skip
POPULATIONS = (100, 10_000, 100_000, 1_000_000)
_FIRST = 2  # rounds that load libraries and record steps


def images(clients: int = 20, side: int = 8) -> Any:
    """Clients with two rows for training, one for validation and one for the test: small, so that weights count."""
    import torch

    from motet.client import Batch, ClientData
    from motet.data.federated import FederatedData

    made = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(clients, 4, 3, side, side, generator=made),
        torch.arange(4 * clients).reshape(-1, 4) % 10,
    )
    clients_data = {
        f"client-{i:03}": ClientData(*(Batch.of(x[i, a:b], y[i, a:b]) for a, b in ((0, 2), (2, 3), (3, 4))))
        for i in range(clients)
    }
    names = tuple(map(str, range(10)))
    return FederatedData("images", clients_data, {}, "classes", 10, names, (), (3, side, side))


# ---- one run, in a process of its own ----


class Clock:
    """Takes the time of every round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.began = (time.perf_counter(), time.process_time())

    def on_start(self, trainer: Any) -> None:
        self.began = (time.perf_counter(), time.process_time())

    def on_round(self, trainer: Any, seconds: float) -> None:
        now = (time.perf_counter(), time.process_time())
        self.wall.append(now[0] - self.began[0])
        self.cpu.append(now[1] - self.began[1])
        self.began = now

    def should_stop(self) -> bool:
        return False


def measure(words: list[str]) -> dict[str, Any]:
    """Run it, and say what it took."""
    from motet.runs.build import resolve
    from motet.runs.recipe import read
    from motet.runs.run import run

    began, clock = time.perf_counter(), Clock()
    resolved = resolve(read(words=[*words, "save.models=none"]))
    load = time.perf_counter() - began
    with tempfile.TemporaryDirectory(dir=RESULTS.parent) as folder:
        done = run(resolved, folder, clock)
        size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
        summary = done.summary
    later = slice(_FIRST, None) if len(clock.wall) > _FIRST else slice(None)
    return {
        "clients": len(resolved.federated.clients_data), "load": load, "round": median(clock.wall[later]),
        "cpu": median(clock.cpu[later]), "whole": time.perf_counter() - began, "folder": size,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "rounds": len(clock.wall),
        "personal": summary.get("personal"), "engine": resolved.choice.why,
    }  # fmt: skip


# ---- all of them ----


def apart(what: str, words: list[str]) -> dict[str, Any]:
    """`measure` in a process of its own; the result is written down at once."""
    print(f"{what}: {' '.join(words)}", file=sys.stderr)
    order = [sys.executable, __file__, "--measure", json.dumps(words)]
    out = subprocess.run(order, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = {"what": what, "commit": commit()} | json.loads(out.splitlines()[-1])
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    known = [k for k in known if (k["what"], k["clients"]) != (what, found["clients"])]
    RESULTS.write_text(json.dumps([*known, found], indent=1))
    return found


def commit() -> str:
    order = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(order, stdout=subprocess.PIPE, text=True, cwd=RESULTS.parents[1]).stdout.strip()


def table(found: list[dict[str, Any]]) -> str:
    head = "| run | clients | load s | s a round | processor s a round | peak memory MiB | run folder MiB | commit |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for f in sorted(found, key=lambda f: (f["what"], f["clients"])):
        cells = [
            f"{f['load']:.1f}",
            f"{f['round']:.2f}",
            f"{f['cpu']:.2f}",
            *(f"{f[k] / 2**20:,.0f}" for k in ("peak", "folder")),
        ]
        lines.append(f"| {f['what']} | {f['clients']:,} | {' | '.join(cells)} | {f['commit']} |")
    return "\n".join(lines)


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Processor seconds a round and peak memory against the number of clients."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "motet"
    import matplotlib.pyplot as plt

    rows = sorted((f for f in found if f["what"] == "sampled"), key=lambda f: f["clients"])
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    shown = (("cpu", 1.0, "processor seconds a round"), ("peak", 2.0**20, "peak memory (MiB)"))
    for ax, (key, unit, label) in zip(axes, shown, strict=True):
        ax.plot([f["clients"] for f in rows], [f[key] / unit for f in rows], "o-", color="#0b5394")
        most = max(f[key] / unit for f in rows)
        ax.set(xscale="log", xlabel="clients in the federation", ylabel=label, ylim=(0, 1.15 * most))
        ax.grid(color="#dddddd", linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=lambda s: list(map(int, s.split(","))), default=list(POPULATIONS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--full", type=int, default=0, metavar="CLIENTS")
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    if asked.measure:
        print(json.dumps(measure(json.loads(asked.measure))))
        return
    if asked.full:
        apart("everybody", [*W1, f"data.clients={asked.full}", "train.rounds=1", "engine.compile=yes"])
    elif asked.resnet:
        for many, rounds in ((20, 1), (20, 10), (200, 1)):
            apart(f"resnet, rounds: {rounds}", [*RESNET, f"data.clients={many}", f"train.rounds={rounds}"])
    elif not asked.draw:
        common = [
            "train.cohort=1000",
            f"train.rounds={asked.rounds}",
            "train.evaluate=1",
            "engine.compile=no",
        ]
        for many in asked.clients:
            apart("sampled", [*W1, f"data.clients={many}", *common])
    found = json.loads(RESULTS.read_text())
    if asked.draw:
        draw(found, asked.draw)
    print(table(found))


if __name__ == "__main__":
    main()
