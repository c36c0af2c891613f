"""What a Ray cluster costs and gains on one machine with two cores.

    python benchmarks/cluster.py engine                  # W2: two actors beside the threads engine, turn about
    python benchmarks/cluster.py study --rounds 5,50     # 40 runs on two nodes beside one after another

The engines play the same rounds, scoring included, one after the other within each round, so that other work on the
machine hits both; the medians of the rounds are compared, and the weights must agree. Processor time, that of the
actors included, says what the cluster costs also on a machine that is busy. The nodes of the study are two
raylets on this machine with one CPU each. They are started before the time is taken, as a person's cluster would be.
One after another means `--jobs 1`: all runs in the process of the command, which pays once for its imports. On a busy
machine wall time says little, so processor seconds of all processes are counted too, Ray's own included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "sides"))

import psutil

import motet.runs.build as build
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.ray import Ray
from motet.engines.ray_cluster import connect
from motet.engines.ray_crew import Crew
from motet.engines.ray_work import Inner
from motet.engines.threads import Threads
from motet.runs.recipe import read
from motet_side import NETS, federation
from study import METHODS
from workloads import WORKS, Work, generate

DATA = Path(__file__).parent / ".data"
_LOOK = 0.25  # seconds between two looks at what processes have used
SKIPPED = 1  # rounds: the first records training steps


def engines(rounds: int, name: str) -> None:
    work = WORKS[name]
    generate(work, DATA)
    method, clients = method_on(work)
    with single_threaded():
        crew = Crew(connect("", 2), 2, 1.0, Inner("threads", workers=1))
        sides: dict[str, Any] = {"threads": Threads(clients, workers=2), "ray": Ray(clients, crew)}
        pids = [os.getpid(), *(crew.cluster.get(m.ready) for m in crew.members)]
        seconds, states = turn_about(method, sides, rounds, pids)
        crew.close()
    same = all(bool((states["ray"][k] == states["threads"][k]).all()) for k in states["ray"])
    print(f"{name}: same bits: {same}")
    for place, kind in enumerate(("wall", "processor")):
        threads, ray = ([s[place] for s in seconds[side][SKIPPED:]] for side in ("threads", "ray"))
        middle = statistics.median(threads), statistics.median(ray)
        print(
            f"{kind} time: threads {middle[0]:.2f} s a round, ray {middle[1]:.2f} s: {middle[1] / middle[0]:.3f}"
        )


def method_on(work: Work) -> tuple[Any, Any]:
    words = [f"net={NETS[work.net]}", f"method.lr={work.lr}", f"method.epochs={work.epochs}",
             f"method.batch={work.batch}", "data=wine", "train.metric=accuracy"]  # fmt: skip
    data, recipe = federation(work.name, str(DATA)), read(words=words)
    return build.build(recipe, data, build.task_of(recipe, data)).method, data.clients_data


def turn_about(
    method: Any, sides: dict[str, Any], rounds: int, pids: list[int]
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, Any]]:
    """Wall and processor seconds of every round of each side, scoring included, and where each ends."""
    who = list(sides["threads"].clients)
    states = {side: start(e, method, Turn(-1, who, who, 0)) for side, e in sides.items()}
    seconds: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        turn = Turn(number, who, who, number + 1)
        for side in sorted(sides, reverse=bool(number % 2)):
            began, before = time.perf_counter(), processor_time(pids)
            states[side] = play(sides[side], method, states[side], turn)
            sides[side].evaluate(method, states[side], turn, "val")
            seconds[side].append((time.perf_counter() - began, processor_time(pids) - before))
            print(
                f"round {number + 1}, {side}: {seconds[side][-1][0]:.2f} s, {seconds[side][-1][1]:.2f} s of CPU",
                flush=True,
            )
    return seconds, states


def processor_time(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def studies(rounds: int, turns: int) -> None:
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    how = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 200 << 20}
    nodes = Cluster(initialize_head=True, head_node_args=how)
    nodes.add_node(**how)
    try:
        pairs = [(study(rounds, "1"), study(rounds, f"ray:{nodes.address}")) for _ in range(turns)]
    finally:
        nodes.shutdown()
    one, two = (min(pair[way].wall for pair in pairs) for way in (0, 1))
    print(
        f"{rounds} rounds: one after another {one:.1f} s, two nodes {two:.1f} s: {one / two:.2f} times as fast"
    )
    alone, spread = (min((pair[way] for pair in pairs), key=lambda s: s.whole) for way in (0, 1))
    bound = max(spread.longest, spread.whole / 2)
    print(
        f"by processor time: one after another {alone.whole:.1f} s; on two nodes {spread.whole:.1f} s in all, "
        f"{spread.command:.1f} s of the command and {spread.longest - spread.command:.1f} s of its busiest worker: "
        f"{alone.whole / bound:.2f} times as fast on two cores of its own"
    )


@dataclass(frozen=True)
class StudyCosts:
    """Of one study of 40 runs."""

    wall: float  # seconds that a person waits
    processes: tuple[float, ...]  # processor seconds of each process, Ray's own included; the command's first

    @property
    def whole(self) -> float:
        return sum(self.processes)

    @property
    def command(self) -> float:
        return self.processes[0]

    @property
    def longest(self) -> float:
        """The command and its busiest worker, as if one waited for the other all the time: no fewer cores than two
        and no better order of runs could make it slower than that."""
        return self.command + max(self.processes[1:], default=0.0)


def study(rounds: int, jobs: str) -> StudyCosts:
    """Forty runs, one after another in the command's own process, or on a cluster."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "motet.cli.main", "compare", "data=digits", f"train.rounds={rounds}"]
        command += ["train.patience=0"]  # so that all runs take as long, on every machine
        command += ["--methods", METHODS, "--seeds", "0-9", "--jobs", jobs, "--out", out, "--quiet"]
        before, began = processes_below(), time.perf_counter()
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen: dict[int, float] = {}
        while running.poll() is None:
            seen |= processes_below()
            time.sleep(_LOOK)
        wall = time.perf_counter() - began
    if running.returncode:
        raise RuntimeError(f"the study ended with exit code {running.returncode}")
    used = {pid: seconds - before.get(pid, 0.0) for pid, seconds in seen.items()}
    return StudyCosts(wall, (used.pop(running.pid), *used.values()))


def processes_below() -> dict[int, float]:
    """Processor seconds of every process that came from this one; the last fraction of a second is missed."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found[process.pid] = sum(process.cpu_times()[:2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("engine", "study"))
    parser.add_argument("--work", default="W2", choices=("W2", "W3"), help="of the engines (default: W2)")
    parser.add_argument("--rounds", default="", help="6 of the engines; of each run of the study 5,50")
    parser.add_argument("--turns", type=int, default=1, help="how often each way of the study is measured")
    asked = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if asked.what == "engine":
        engines(int(asked.rounds or 6), asked.work)
    for rounds in (asked.rounds or "5,50").split(",") if asked.what == "study" else ():
        studies(int(rounds), asked.turns)


if __name__ == "__main__":
    main()
