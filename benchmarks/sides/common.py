"""What every side shares: its command line, its clock, its memory and the one line that it prints.

Knows the contract between the harness and a side. Knows nothing of torch or of any framework.

A side is a script that runs in its own environment as

    python side.py --work W1 --rounds 20 --data DIR [--compiled] [--variant NAME]

and prints ONE line of JSON on stdout; everything else goes to stderr:

    {"side": "plain", "work": "W1", "seconds": [0.7, ...], "score": 0.81, "setup_seconds": 1.9, "peak_mib": 310.2,
     "versions": {"torch": "2.13.0"}}

seconds        wall time of each round: training, averaging and scoring all local test sets
processor      seconds of the processor of each round, all threads, of the side's first process alone
score          after the last round: mean over clients of the accuracy on their local test sets
setup_seconds  from the start of the script to the start of the first round
peak_mib       peak resident memory, of all of the side's processes together
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from workloads import WORKS, Work

PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20  # MiB


@dataclass(frozen=True)
class Order:
    """What the harness asks a side to do."""

    work: Work
    rounds: int
    data: Path
    compiled: bool
    variant: str


def order(variants: tuple[str, ...] = ("",)) -> Order:
    """Read the command line; the first of `variants` is the default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, choices=sorted(WORKS))
    parser.add_argument("--rounds", type=int, help="default: as many as the workload says")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--variant", default=variants[0], choices=variants)
    asked = parser.parse_args()
    work = WORKS[asked.work]
    return Order(work, asked.rounds or work.rounds, asked.data.resolve(), asked.compiled, asked.variant)


@dataclass
class Clock:
    """Seconds of each round. Frameworks own their loops, so rounds are told apart by their ends."""

    launched: int = 0  # the process that was started first, if it is not this one
    setup: float = 0.0
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    last: float = 0.0
    used: float = 0.0

    def begin(self) -> None:
        self.last, self.used = time.perf_counter(), time.process_time()
        self.setup = age(self.launched or os.getpid())

    def lap(self, score: float) -> None:
        now, used = time.perf_counter(), time.process_time()
        self.seconds.append(now - self.last)
        self.processor.append(used - self.used)
        self.last, self.used = now, used
        print(
            f"round {len(self.seconds)}: {self.seconds[-1]:.3f} s, score {score:.4f}",
            file=sys.stderr,
            flush=True,
        )


def age(pid: int) -> float:
    """Seconds since a process was started, imports included."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf(
        "SC_CLK_TCK"
    )
    return float(Path("/proc/uptime").read_text().split()[0]) - started


class OwnStdout:
    """ClientStates stdout for the one line of JSON: what libraries print there goes to stderr."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self.kept = os.dup(1)
        os.dup2(2, 1)

    def say(self, line: str) -> None:
        os.write(self.kept, (line + "\n").encode())


def own_peak() -> float:
    """Peak resident MiB of this process alone."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class TreePeak:
    """Peak resident MiB of a process and all its descendants, looked at twice a second.

    Private pages add up; shared pages are counted once, as large as the largest process has them.
    """

    def __init__(self, root: int, every: float = 0.5) -> None:
        self.root, self.mib = root, 0.0
        self.done = threading.Event()
        self.watcher = threading.Thread(target=self.watch, args=(every,), daemon=True)
        self.watcher.start()

    def watch(self, every: float) -> None:
        while not self.done.wait(every):
            self.mib = max(self.mib, tree_mib(self.root))

    def stop(self) -> float:
        self.done.set()
        self.watcher.join()
        return max(self.mib, own_peak())


def tree_mib(root: int) -> float:
    found, family = [], [root]
    children = parents()
    while family:
        pid = family.pop()
        found.append(resident(pid))
        family += children.get(pid, [])
    return sum(private for private, _ in found) + max(shared for _, shared in found)


def parents() -> dict[int, list[int]]:
    """Every process's children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    return children


def resident(pid: int) -> tuple[float, float]:
    """(private, shared) MiB of one process."""
    try:
        _, pages, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except OSError:
        return 0.0, 0.0
    return (int(pages) - int(shared)) * PAGE, int(shared) * PAGE


def line(
    side: str,
    asked: Order,
    clock: Clock,
    score: float,
    peak_mib: float,
    packages: tuple[str, ...],
    commits: dict[str, str] | None = None,
) -> str:
    """The one line that a side prints. `commits` are those of peers that are no packages."""
    return json.dumps(
        {
            "side": side,
            "work": asked.work.name,
            "variant": asked.variant,
            "compiled": asked.compiled,
            "seconds": [round(s, 5) for s in clock.seconds],
            "processor": [round(s, 5) for s in clock.processor],
            "score": round(float(score), 5),
            "setup_seconds": round(clock.setup, 3),
            "peak_mib": round(peak_mib, 1),
            "versions": {name: version(name) for name in ("torch", "numpy", *packages)} | (commits or {}),
        }
    )
