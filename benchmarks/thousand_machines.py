"""What a server of a thousand machines would wait for, by arithmetic from costs that are measured here.

    python benchmarks/thousand_machines.py             # measures, and writes results/thousand_machines.json and .md
    python benchmarks/thousand_machines.py --quick     # small models, into results/quick/

Measured: seconds of one core per MB of folding a reply, of packing and of reading a letter, of copying memory.
Assumed: everything in ASSUMED, which the page names. docs/concepts/a-thousand-machines.md explains the formulas.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median

import torch

import runs
from motet.engines.letters import Reply
from motet.engines.mean import RunningMean
from motet.vec import Vec
from whole_runs import Record, box, conditions

MB = 1e6  # bytes
ASSUMED = {
    "machines": 1000,
    "network": 1.25e9,  # bytes a second at the server: 10 Gbit/s, each way
    "store": 0.3 * 64e9,  # bytes of an object store: Ray's share of 30 % of a server with 64 GB
    "sum": 2.0,  # bytes of a partial sum per byte of a model: double precision
    "fan": 32,  # machines below one machine, if sums are added up in a tree
}
MODELS = {  # parameters, of single precision
    "W1's logistic regression": 930,
    "W2's CNN": 1_663_370,
    "ResNet-18": 11_173_962,
    "a network of 100 million": 100_000_000,
}


def processor(work: Callable[[], object], times: int = 9) -> float:
    """Median seconds of the processor; short work is repeated, so that the clock can tell."""
    begin = time.process_time()
    work()
    often = max(1, int(0.01 / max(time.process_time() - begin, 1e-6)))
    taken = []
    for _ in range(times):
        begin = time.process_time()
        for _ in range(often):
            work()
        taken.append((time.process_time() - begin) / often)
    return median(taken)


def costs(megabytes: float) -> Record:
    """Seconds of one core per MB of what goes over the wire, with a model of this size in 20 layers."""
    torch.set_num_threads(1)
    each = int(megabytes * MB / 4 / 20)
    reply = Vec({f"layer{i}": torch.randn(each) for i in range(20)})
    sums = reply.map(lambda value, _: value.double())
    fold, fold_sums = RunningMean(), RunningMean()
    message = Reply(reply, 1).pack()
    size = each * 20 * 4 / MB
    found = {
        "fold_reply": processor(lambda: fold.add(reply, 1.0)) / size,
        "fold_sum": processor(lambda: fold_sums.add(sums, 1.0)) / (2 * size),
        "pack": processor(lambda: Reply(reply, 1).pack()) / size,
        "read": processor(lambda: Reply.read(message, like=reply)) / size,
        "copy": processor(lambda: reply.map(lambda value, _: value.clone())) / size,
    }
    return {"megabytes": round(size, 3), **{name: float(f"{value:.3g}") for name, value in found.items()}}


def seconds_of(what: str, size: float, found: list[Record]) -> float:
    """Seconds of one core for a message of `size` bytes: per message as the smallest takes, per MB as the largest."""
    small, large = found[0], found[-1]
    return float(small[what] * small["megabytes"] + large[what] * size / MB)


def server(parameters: int, found: list[Record], messages: str) -> Record:
    """Seconds that a server of all machines waits for in a round, by what it waits for."""
    size, machines = 4 * parameters, ASSUMED["machines"]
    up, fold = (size * ASSUMED["sum"], "fold_sum") if messages == "sums" else (size, "fold_reply")
    waits = {
        "send": machines * size / ASSUMED["network"], "receive": machines * up / ASSUMED["network"],
        "fold": machines * seconds_of(fold, up, found),
    }  # fmt: skip
    if messages == "letters":
        waits["read"] = machines * seconds_of("read", up, found)
    return {**waits, "first": max(waits, key=lambda name: waits[name]), "held": machines * up}


def tree(parameters: int, found: list[Record]) -> float:
    """Seconds of a round's messages in a tree with two levels: each level has at most `fan` machines below one."""
    size, up = 4 * parameters, 4 * parameters * ASSUMED["sum"]
    level = ASSUMED["fan"] * ((size + up) / ASSUMED["network"] + seconds_of("fold_sum", up, found))
    return 2 * level


def shown(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def measured_table(found: list[Record]) -> list[str]:
    names = {
        "fold_reply": "fold a reply", "fold_sum": "fold a partial sum", "pack": "pack a letter",
        "read": "read a letter, checked", "copy": "copy memory",
    }  # fmt: skip
    rows = [
        f"| {what} | " + " | ".join(f"{1000 * cost[key]:.3f}" for cost in found) + " |"
        for key, what in names.items()
    ]
    head = "| ms of one core per MB | " + " | ".join(f"{cost['megabytes']:.3g} MB" for cost in found) + " |"
    return [head, "| --- |" + " ---: |" * len(found), *rows]


def server_table(found: list[Record], messages: str) -> list[str]:
    lines = [
        "| model | bytes | send | receive | fold | read | first | held at once |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for name, parameters in MODELS.items():
        at = server(parameters, found, messages)
        read = shown(at["read"]) if "read" in at else "–"
        fits = "" if at["held"] <= ASSUMED["store"] else ", more than the store"
        lines.append(
            f"| {name} | {4 * parameters / MB:.3g} MB | {shown(at['send'])} | {shown(at['receive'])} "
            f"| {shown(at['fold'])} | {read} | {at['first']} | {at['held'] / 1e9:.3g} GB{fits} |"
        )
    return lines


CLUSTER = "## A cluster: each machine sends the sum of its clients, in double precision"
FEDERATION = "## A federation: each machine is a client and sends a letter"
EXPLAINED = "How the numbers come about: [a thousand machines](../../docs/concepts/a-thousand-machines.md)."


def page(kept: Record) -> str:
    found = kept["costs"]
    where = f"Written by `{kept['written_by']}`. {box(kept)}; load before {kept['load_before']}."
    trees = "; ".join(f"{name} {shown(tree(count, found))}" for name, count in MODELS.items())
    below = f"In a tree of two levels with {ASSUMED['fan']} machines below one, a round's messages and sums take: "
    lines = [
        "# A thousand machines", "", where, EXPLAINED, "", "## Measured", "", *measured_table(found), "",
        CLUSTER, "", *server_table(found, "sums"), "", below + trees + ".", "",
        FEDERATION, "", *server_table(found, "letters"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> None:

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small models, to see that it runs")
    asked = parser.parse_args()
    folder = runs.HERE / "results" / ("quick" if asked.quick else "")
    folder.mkdir(parents=True, exist_ok=True)
    load = round(os.getloadavg()[0], 2)
    found = [costs(size) for size in ((0.004, 1) if asked.quick else (0.004, 1, 10, 100))]
    kept = {**conditions(), "load_before": load, "date": runs.now(), "assumed": ASSUMED, "costs": found}
    (folder / "thousand_machines.json").write_text(json.dumps(kept, indent=1) + "\n")
    (folder / "thousand_machines.md").write_text(page(kept))
    print(page(kept))


if __name__ == "__main__":
    main()
