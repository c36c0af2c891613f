"""What a Ray cluster costs and gains on one machine with two cores.

    python benchmarks/cluster.py engine                  # W2: two actors beside the threads engine, turn about
    python benchmarks/cluster.py study --rounds 5,50     # 40 runs on two nodes beside one after another

The engines play the same rounds, scoring included, one after the other within each round, so that other work on the
machine hits both; the medians of the rounds are compared, and the weights must agree. Processor time, that of the
actors included, says what the cluster costs also on a machine that is busy. The nodes of the study are two
raylets on this machine with one CPU each. They are started before the time is taken, as a person's cluster would be.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
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
    one, two = (min(pair[way] for pair in pairs) for way in (0, 1))
    print(
        f"{rounds} rounds: one after another {one:.1f} s, two nodes {two:.1f} s: {one / two:.2f} times as fast"
    )


def study(rounds: int, jobs: str) -> float:
    """Wall seconds of 40 runs."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "motet.cli.main", "compare", "data=digits", f"train.rounds={rounds}"]
        command += ["--methods", METHODS, "--seeds", "0-9", "--jobs", jobs, "--out", out, "--quiet"]
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - began


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
