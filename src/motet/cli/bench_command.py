"""`motet bench device`: which device and engine are faster on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from motet.cli.command import Add, group, say


def bench_command(add: Add) -> None:
    within = group(add, "bench", "measure what is faster on this machine")
    p = within("device", do_bench_device, "time the CPU and a GPU on two small workloads, with each engine")
    p.add_argument("--device", default="auto", help="cuda, cuda:1, mps, cpu; auto = a GPU if there is one")
    p.add_argument("--rounds", type=int, default=5, help="rounds that are timed, after two that are not")
    p.add_argument("--json", action="store_true", help="as JSON")


def do_bench_device(args: Any) -> None:
    from motet.engines.choose import suiting_device
    from motet.errors import UsageError
    from motet.runs.bench_device import measure
    from motet.text import aligned

    if args.rounds < 1:
        raise UsageError(f"--rounds is {args.rounds}; it must be 1 or more")
    device = suiting_device(args.device)
    if device == "cpu":
        say("torch finds no GPU here: the CPU alone is timed")
    found = measure(device, args.rounds, say)
    if args.json:
        print(json.dumps([asdict(t) for t in found]))
        return
    head = ["workload", "device", "engine", "ms a round", "speed (fastest on the CPU: 1)"]
    rows = [[t.workload, t.device, t.engine, f"{1000 * t.seconds:.1f}", f"{t.ratio:.2f}"] for t in found]
    print("\n".join(aligned([head, *rows], right=[3, 4])))
    say("\nnext:  motet run … engine.device=DEVICE engine.name=ENGINE, with the fastest of these")
