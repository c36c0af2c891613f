"""How much faster a study of 40 runs is with two jobs than one run after another.

    python benchmarks/study.py                  # 40 runs of 5 rounds, and 40 of 50 rounds
    python benchmarks/study.py --rounds 5 --jobs 4

Both ways start from nothing, take turns, and do the same work: four methods, ten seeds, data=digits. Wall time is what
a person waits for, with the start of the program, the table and the report in it. CPU time is that of all processes:
it says what the second job costs, also on a machine that is busy with something else.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time

METHODS = "local,fedavg,fedprox,ditto"


def once(rounds: int, jobs: int) -> tuple[float, float]:
    """Wall and CPU seconds of one study."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "motet.cli.main", "compare", "data=digits", f"train.rounds={rounds}"]
        command += ["--methods", METHODS, "--seeds", "0-9", "--jobs", str(jobs), "--out", out, "--quiet"]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = time.perf_counter() - began
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", default="5,50", help="of each run (default: 5,50)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--turns", type=int, default=1, help="how often each way is measured (default: 1)")
    asked = parser.parse_args()
    print(f"40 runs, data=digits; load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for rounds in map(int, asked.rounds.split(",")):
        turns = [(once(rounds, 1), once(rounds, asked.jobs)) for _ in range(asked.turns)]
        (wall, cpu), (wall_jobs, cpu_jobs) = (
            tuple(min(turn[way][i] for turn in turns) for i in (0, 1)) for way in (0, 1)
        )
        print(
            f"{rounds} rounds: one after another {wall:.1f} s ({cpu:.1f} s of CPU), {asked.jobs} at a time "
            f"{wall_jobs:.1f} s ({cpu_jobs:.1f} s of CPU): {wall / wall_jobs:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
