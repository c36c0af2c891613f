"""Workloads that others published with their times, run with motet on this machine.

    python benchmarks/published.py                      # FLUTE's and FedJAX's, one whole run each
    python benchmarks/published.py --work flute --turns 3
    python benchmarks/published.py --quick              # do they run here? a few rounds of fewer clients

Writes benchmarks/results/published.json and published.md, with --quick into benchmarks/results/quick/.
What was published was measured on other machines: the page says what is known of them, and what differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import mean

import runs
from published_data import has_mnist
from whole_runs import Record, box, conditions, measured

FLUTE_TABLE = (
    ("Flower 1.0.0, CPU", "30 min 14 s", "~0.80"),
    ("FLUTE, CPU", "3 min 20 s", "~0.80"),
    ("FedML 0.7.303, GPU", "3 min 9 s", "~0.81"),
    ("FLUTE, 4 GPUs", "1 min 26 s", "~0.81"),
)
FLUTE_WORK = """\
1,000 clients, 10 a round, one epoch with batch 10 and learning rate 0.03, 100 rounds, scores every 20 rounds."""
FLUTE_DIFFERS = """\
Published in the README of [FLUTE](https://github.com/microsoft/msrflute) (commit 8bfe085). What differs:
its README names neither processors nor GPUs. It takes FedML's split of MNIST (69,035 rows, two digits a client,
sizes by a power law), and we draw such a split of MNIST's 70,000 rows. Its network puts a sigmoid before the
cross-entropy, which slows learning; ours does not. Our time is that of the whole command: start of Python, reading
the images, training, scorings of all clients, checkpoints and the run's tables."""
FEDJAX_SECONDS = 4.98751  # mean of 500 rounds
FEDJAX_WORK = """\
3,400 clients, 340 a round, dense network 784-200-200-62, one epoch with batch 20, a personal model in every client."""
FEDJAX_DIFFERS = """\
Published in experiments/apfl of [FedJAX](https://github.com/google/fedjax) (commit c57ee19). What differs:
EMNIST is not here: the images are made, of its shape, 220 rows a client on average, one tenth of them for scores, as
EMNIST has. In every round a client of motet also takes a step that learns its share of the mixture, on a batch of its
own. FedJAX scores 340 clients every 10 rounds and writes all states (2.5 GB) every 10 rounds; motet scores all 3,400
clients every 10 rounds and writes states that changed every few seconds. FedJAX's server steps with Adam; ours
averages. Processor seconds are the difference between a run of all rounds and one of a single round, so that reading,
compiling and scores at the end are in neither; a round's share of writing states is in them."""
BUSY = "**The machine was busy with other work, so wall times say nothing; repeat it on a quiet one.** "
QUICK = "This page is of a quick try with fewer clients and rounds: its figures say nothing."


def flute_words(quick: bool, rounds: int) -> list[str]:
    small = ["data.clients=100", "train.rounds=10"] if quick else ["data.clients=1000", "train.rounds=100"]
    return [
        "data=published_data:flute", *small, "net=logistic", "method=fedavg", "method.lr=0.03", "method.batch=10",
        "method.epochs=1", "train.cohort=10", "train.evaluate=20", "train.patience=0", "train.report=last",
        "save.models=none",
    ]  # fmt: skip


def fedjax_words(quick: bool, rounds: int) -> list[str]:
    size = (200, 20, min(rounds, 4)) if quick else (3400, 340, rounds)
    return [
        "data=published_data:fedjax", f"data.clients={size[0]}", "net=mlp", "net.hidden=[200,200]", "method=apfl",
        "method.lr=0.001", "method.batch=20", "method.epochs=1", f"train.cohort={size[1]}", f"train.rounds={size[2]}",
        "train.evaluate=10", "train.patience=0", "train.report=last", "save.models=none",
    ]  # fmt: skip


WORDS = {"flute": flute_words, "fedjax": fedjax_words}


def fastest(tries: list[Record]) -> Record:
    """The run with the least time of the processor: others disturb it least."""
    return min(tries, key=lambda run: run["processor_seconds"])


def busy(tries: list[Record]) -> bool:
    """Whether others had more than the machine's cores before every run: wall times then say nothing of motet."""
    return min(run["load_before"] for run in tries) > 2 * (os.cpu_count() or 1)


def times(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def flute_page(tries: list[Record], mnist: bool) -> list[str]:
    best = fastest(tries)
    data = "MNIST" if mnist else "made images of the same size (MOTET_DATA has no MNIST)"
    waited = "busy machine" if busy(tries) else times(best["wall_seconds"])
    cost = f"{waited}; of the processor {best['processor_seconds']:.1f} s"
    return [
        "## FLUTE's logistic regression", "", FLUTE_WORK, "",
        "| | whole run | accuracy |", "| --- | ---: | ---: |",
        *(f"| published: {name} | {time} | {score} |" for name, time, score in FLUTE_TABLE),
        f"| motet, two cores, {data} | {cost} | {best['summary']['validation']:.3f} |", "",
        *said_of(tries), "", FLUTE_DIFFERS, "",
    ]  # fmt: skip


def fedjax_page(tries: list[Record]) -> list[str]:
    """Of the tries, every second one has a single round."""
    best, single = fastest(tries[::2]), fastest(tries[1::2])
    seconds, used = best["rounds_seconds"], best["processor_seconds"]
    each = "busy machine" if busy(tries) else f"{mean(seconds[1:]):.2f}"
    of_processor = (used - single["processor_seconds"]) / (len(seconds) - 1)
    return [
        "## FedJAX's dense network with APFL", "", FEDJAX_WORK, "",
        "| | s a round | processor s a round | what |", "| --- | ---: | ---: | --- |",
        f"| published: FedJAX, laptop with 4 cores (i5, 1.4 GHz) | {FEDJAX_SECONDS:.2f} | | EMNIST; mean of 500 |",
        f"| motet, two cores | {each} | {of_processor:.2f} | made images; mean of rounds 2 to {len(seconds)} |", "",
        f"The first round took {seconds[0]:.1f} s by the clock; the whole run {used:.0f} s of the processor.", "",
        *said_of(tries), "", FEDJAX_DIFFERS, "",
    ]  # fmt: skip


def said_of(tries: list[Record]) -> list[str]:
    loads = ", ".join(str(run["load_before"]) for run in tries)
    walls = ", ".join(f"{run['wall_seconds']:.1f}" for run in tries)
    used = ", ".join(f"{run['processor_seconds']:.1f}" for run in tries)
    waited = BUSY if busy(tries) else ""
    return [
        f"{waited}Runs: {len(tries)}; wall {walls} s; processor {used} s; load before {loads}; "
        f"peak {max(run['peak_mib'] for run in tries)} MiB; code {tries[0]['code']}. `{tries[0]['command']}` with "
        "benchmarks/ on PYTHONPATH."
    ]


def page(kept: Record) -> str:
    lines = ["# Published workloads", "", f"Last written by `{kept['written_by']}`. {box(kept)}.", ""]
    lines += [QUICK, ""] if kept["quick"] else []
    if tries := kept["works"].get("flute"):
        lines += flute_page(tries, kept["mnist"])
    if tries := kept["works"].get("fedjax"):
        lines += fedjax_page(tries)
    return "\n".join(lines).rstrip() + "\n"


def asked_for() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", default=",".join(WORDS), help="flute, fedjax")
    parser.add_argument("--turns", type=int, default=1, help="runs of each (default: 1)")
    parser.add_argument(
        "--rounds", type=int, default=20, help="of FedJAX's workload, whose 500 are alike (default: 20)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer clients and rounds")
    asked = parser.parse_args()
    if unknown := set(asked.work.split(",")) - set(WORDS):
        parser.error(f"--work: {', '.join(sorted(unknown))} unknown, expected some of {', '.join(WORDS)}")
    return asked


def kept_before(path: Path) -> dict[str, list[Record]]:
    return json.loads(path.read_text())["works"] if path.exists() else {}


def main() -> None:
    asked = asked_for()
    folder = runs.HERE / "results" / ("quick" if asked.quick else "")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "published.json"
    works = kept_before(path)
    for name in asked.work.split(","):
        lengths = (asked.rounds, 1) if name == "fedjax" else (0,)  # a run of one round is taken off the other
        works[name] = [
            measured(WORDS[name](asked.quick, length)) | {"code": runs.code_version()}
            for _ in range(asked.turns)
            for length in lengths
        ]
        kept = {**conditions(), "quick": asked.quick, "mnist": has_mnist(), "works": works}
        path.write_text(json.dumps(kept, indent=1) + "\n")
        (folder / "published.md").write_text(page(kept))
        print(f"{name}: {works[name][-1]['wall_seconds']} s", file=sys.stderr, flush=True)
    print(page(kept))


if __name__ == "__main__":
    main()
