"""FedAvg on every data set, with settings small enough for two cores, beside what guessing gives.

    MOTET_DATA=… python benchmarks/all_data.py [name ...]

Writes benchmarks/results/all_data.md. Guessing is the answer that looks at no
example: the most frequent class of all clients' training examples for the score, their shares for the loss, the
mean of numbers. Data sets that are not here are listed as such. Runs
are kept in benchmarks/.runs and are not made again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import motet
from motet.data.federated import DataError, FederatedData
from motet.runs.build import federated_data
from motet.runs.identity import pieces_of, whole
from motet.runs.recipe import Recipe, read

HERE = Path(__file__).parent
SMALL = ["net=cnn", "net.channels=[16, 32]", "net.kernel=3", "net.hidden=64", "method.lr=0.05"]
IMAGES = ["data.split=dirichlet", "data.clients=20", "data.alpha=0.3", *SMALL, "method.batch=32"]
WORDS: dict[str, list[str]] = {
    "mnist": [*IMAGES, "train.rounds=5"],
    "fashion_mnist": [*IMAGES, "train.rounds=5"],
    "cifar10": [*IMAGES, "train.rounds=8"],
    "cifar100": [*IMAGES, "train.rounds=8", "method.epochs=2"],
    "tiny_imagenet": [*IMAGES, "train.rounds=10", "method.epochs=2"],
    "coursera_digits": ["train.rounds=40", "method.epochs=2", "method.lr=0.1"],
    "census": ["train.rounds=10", "method.lr=0.1"],
    "covertype": ["train.rounds=5", "method.batch=64", "method.lr=0.1"],
    "vehicle_loan": ["train.rounds=20", "method.lr=0.1"],
    "boston": ["train.rounds=30", "method.lr=0.01"],
    "shakespeare": [
        "data.users=20",
        "data.crop=1000",
        "data.least=3000",
        "data.server=200",
        "method.lr=1.0",
        "method.epochs=2",
        "method.clip=10",
        "train.rounds=15",
    ],
    "synthetic": ["train.rounds=20", "method.epochs=5", "method.batch=5", "method.lr=0.1"],
    "digits": ["train.rounds=20", "method.lr=0.1"],
    "breast_cancer": ["train.rounds=20", "method.lr=0.1"],
    "wine": ["train.rounds=20", "method.lr=0.1"],
    "diabetes": ["train.rounds=20", "method.lr=0.03"],
}


def measure(name: str) -> list[str]:
    """One row of the table."""
    words = [f"data={name}", "method=fedavg", *WORDS[name]]
    try:
        recipe = read(words=words)
        federation = federated_data(recipe)
    except DataError as e:
        return [name, "not here: " + str(e).split("\n")[0], *[""] * 6]
    done = motet.run(**sections(recipe), out=HERE / ".runs" / f"{name}-{whole(pieces_of(recipe))[:8]}")
    rows = done.test[done.test["side"] == "global"]
    score = "accuracy" if federation.kind == "classes" else "rmse"
    guessed, shares = guess(federation)
    clients = f"{len(federation.clients_data)} + {len(federation.unseen)}"
    cells = [rows[score].mean(), guessed, rows["loss"].mean(), shares]
    seconds = float(done.rounds["seconds"].sum())
    return [name, clients, str(recipe.train.rounds), *(f"{v:.3f}" for v in cells), f"{seconds:.0f}"]


def sections(recipe: Recipe) -> dict[str, Any]:
    return dict(recipe.settings)


def guess(federation: FederatedData) -> tuple[float, float]:
    """Score and loss of the best answer that looks at no example, from all training targets."""
    clients_data = federation.clients_data.values()
    taught, tests = torch.cat([h.train.y for h in clients_data]), [h.test.y for h in clients_data]
    if federation.kind == "classes":
        share = taught.bincount(minlength=federation.outputs).clamp(min=1) / len(taught)
        right = [float((y == share.argmax()).float().mean()) for y in tests]
        return mean(right), mean([float(-share.log()[y].mean()) for y in tests])
    miss = [float(((y - taught.mean()) ** 2).mean()) for y in tests]
    return mean([m**0.5 * federation.scale for m in miss]), mean(miss)


def main() -> None:
    names = sys.argv[1:] or list(WORDS)
    head = ["data", "clients + unseen", "rounds", "score", "guess", "loss", "guess", "s"]
    rows = []
    for name in names:
        rows.append(measure(name))
        print(" | ".join(rows[-1]), flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    lines = [
        "# FedAvg on every data set, quick settings",
        "",
        "Written by `MOTET_DATA=… python benchmarks/all_data.py`, which holds the settings; seed 0, commit "
        f"{commit.stdout.strip()}. The global model on each client's own test examples, mean over clients: accuracy,",
        "or root mean squared error (boston, diabetes: lower is better), and loss (cross-entropy in nats, or squared",
        "error of standardised targets). A guess looks at no example. Seconds of two shared cores.",
        "",
        "| " + " | ".join(head) + " |",
        "| --- " * len(head) + "|",
        *("| " + " | ".join(r) + " |" for r in rows),
    ]
    (HERE / "results" / "all_data.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
