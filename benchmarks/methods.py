"""Seconds a round of several methods on W1, beside the plain FedAvg loop with torch.optim.SGD in the same run.

    python benchmarks/methods.py [--rounds 40] [--methods ditto,scaffold]

RowHashes a table and writes benchmarks/results/methods.md. Every method is an ordinary motet run on compiled,
stacked clients; what is reported is the median of the rounds after the fifth. PFLlib is no package that can be
installed beside; its Ditto and SCAFFOLD were measured elsewhere to take 9.4 s and 4.9 s where such a plain loop
takes 1.6 s, and the last column scales that to the loop measured here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "sides"))

from motet.runs.recipe import read  # noqa: E402
from motet.runs.run import run  # noqa: E402
from motet_side import Laps  # noqa: E402
from workloads import WORKS, generate  # noqa: E402

WORK, SKIP = "W1", 5
PFLLIB = {"ditto": 9.4 / 1.6, "scaffold": 4.9 / 1.6}  # times the plain FedAvg loop
METHODS = ("fedavg", "fedprox", "ditto", "scaffold", "feddyn", "fedala", "fedrod", "pfedme")


def plain(data: Path, rounds: int) -> float:
    """The median round of the plain loop with torch.optim.SGD."""
    side = [sys.executable, str(HERE / "sides" / "plain_side.py"), "--work", WORK, "--variant", "optim"]
    told = subprocess.run(
        [*side, "--rounds", str(rounds), "--data", str(data)], capture_output=True, text=True, check=True
    )
    return median(json.loads(told.stdout.splitlines()[-1])["seconds"][SKIP:])


def ours(method: str, data: Path, rounds: int) -> float:
    work, laps = WORKS[WORK], Laps()
    words = [
        "data=motet_side:federation", f"data.work={WORK}", f"data.folder={data}", "net=logistic",
        f"method={method}", f"method.epochs={work.epochs}", f"method.batch={work.batch}",
        f"train.rounds={rounds}", "engine.compile=yes", "save.models=none",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run(read(words=words), folder, laps)
    return median(laps.clock.seconds[SKIP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--methods", default=",".join(METHODS), help="with commas")
    parser.add_argument("--data", type=Path, default=HERE / ".data")
    asked = parser.parse_args()
    asked.data = asked.data.resolve()
    generate(WORKS[WORK], asked.data)
    loop = plain(asked.data, min(asked.rounds, 15))
    rows = [f"| plain FedAvg loop | {loop:.3f} | 1 | |"]
    for method in asked.methods.split(","):
        seconds = ours(method, asked.data, asked.rounds)
        peer = f"{PFLLIB[method] * loop / seconds:.0f}" if method in PFLLIB else ""
        rows.append(f"| {method} | {seconds:.3f} | {loop / seconds:.1f} | {peer} |")
        print(rows[-1], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    head = [
        "| method | s a round | times the plain FedAvg loop | times PFLlib's |",
        "| --- | ---: | ---: | ---: |",
    ]
    said = (
        f"Written by `python benchmarks/methods.py --rounds {asked.rounds}`, commit {commit.stdout.strip()}."
    )
    text = "\n".join(["# Methods on W1", "", said, "", *head, *rows, ""])
    (HERE / "results" / "methods.md").write_text(text)


if __name__ == "__main__":
    main()
