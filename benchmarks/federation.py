"""How long a steady round takes between real processes over mutual TLS on this machine.

    python benchmarks/federation.py                 # writes results/federation.md

A server and three sites, FedAvg with a network of some 240 KB: a round sends the weights to every site, trains
there on few rows, and takes the weights back; with scoring, they are sent once more. Reported is the median of
rounds without the first ten, from the run's own record, and what masked sums cost beside plain means, in one go:
plain, masked and plain again, so that a machine that becomes slower or faster shows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

from motet.deploy.demo import SITES, Parties, end, open_federation, write_tables
from motet.deploy.server.job_chain import run_federated
from motet.deploy.server.run_files import make_order
from motet.runs.run import Run

FIRST = 10  # rounds that load libraries and fill caches
HERE = Path(__file__).parent
WORDS = ["method.name=fedavg", "net.name=mlp", "net.hidden=[1900]", "train.patience=0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "care"
        kit, tables, parties = open_federation(place), write_tables(place / "tables"), Parties(place)
        try:
            parties.start("server")
            (policy := place / "policy.toml").write_text('masks = "allowed"\n')  # plain runs are measured too
            for site in SITES:
                data = ["--data", str(tables / f"{site}.csv"), "--target", "diagnosis"]
                parties.start(site, *data, "--policy", str(policy))
            rows = []
            plain, masked = [f"train.evaluate={rounds}"], ["guard.masked=true"]
            ways = (
                (plain, "training"),
                ([*plain, *masked], "training, masked"),
                ([*plain, "seed=1"], "training once more"),
                ([], "training and scoring"),
            )
            for words, what in ways:
                order = make_order(
                    kit.federation, None, [*WORDS, f"train.rounds={rounds}", *words], len(SITES), 0, 300.0
                )
                rows.append((what, *measured(Run(run_federated(kit, order, print, 600)))))
        finally:
            end(kit, parties)
    text = page(rows, rounds)
    (HERE / "results" / "federation.md").write_text(text)
    print(text)


def measured(run: Run) -> tuple[float, float, float, float]:
    """Seconds of a round (median, fastest, nine of ten are faster) and KB down to one site."""
    rounds = run.rounds.iloc[FIRST:-1]  # the last one may score
    seconds = rounds["seconds"]
    down = float((rounds["down"] / rounds["cohort"]).median()) / 1000
    return float(seconds.median()), float(seconds.min()), float(seconds.quantile(0.9)), down


def page(rows: list[tuple[str, float, float, float, float]], rounds: int) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False
    ).stdout.strip()
    load = ", ".join(f"{v:.1f}" for v in os.getloadavg())
    lines = [
        "# A round between organisations' processes",
        "",
        f"`python benchmarks/federation.py --rounds {rounds}` at commit {commit}, on {os.cpu_count()} cores "
        f"with a load of {load} (1, 5, 15 minutes). A server and three sites over mutual TLS on loopback, "
        "FedAvg.",
        "",
        "| a round of | KB to each site | median s | fastest s | 90 % are under s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {what} | {down:.0f} | {m:.3f} | {low:.3f} | {high:.3f} |" for what, m, low, high, down in rows
    ]
    lines += ["", masks_cost({row[0]: row for row in rows})]
    return "\n".join(lines) + "\n"


def masks_cost(rows: dict[str, tuple[str, float, float, float, float]]) -> str:
    """What masks add to a round, beside both plain runs."""
    plain, masked, again = (rows[k] for k in ("training", "training, masked", "training once more"))
    low, high = (masked[2] - max(plain[2], again[2])), (masked[2] - min(plain[2], again[2]))
    middle = masked[1] - (plain[1] + again[1]) / 2
    return (
        f"Masks add {middle:+.3f} s to the median round, and {low:+.3f} to {high:+.3f} s to the fastest one, beside "
        "the plain runs before and after."
    )


if __name__ == "__main__":
    main()
