"""motet's side: an ordinary run, with its store, its checkpoints and its per-client metrics.

The local test sets stand in as validation examples, which motet scores after every round anyway; the
benchmark does what a person's run does, and nothing is left out of a round. `--compiled` asks for
compiled steps: in W1 and W4 all steps of a client are one call, with a thread for each core. The
harness runs it with the python that runs bench.py:

    python benchmarks/sides/motet_side.py --work W1 --rounds 20 --data benchmarks/.data [--compiled]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from common import Clock, OwnStdout, line, order, own_peak
from motet.client import Batch, ClientData
from motet.data.federated import FederatedData
from motet.runs.recipe import read
from motet.runs.run import run
from workloads import WORKS, load

NETS = {"linear": "logistic", "cnn": "cnn", "resnet18": "resnet18"}


def federation(work: str = "W1", folder: str = "") -> FederatedData:
    """The workload's arrays as homes: views, nothing is copied. A run finds it as motet_side:federation."""
    size = WORKS[work]
    train_x, train_y, test_x, test_y = map(torch.from_numpy, load(size, Path(folder)))
    none = test_x[0][:0], test_y[0][:0]
    clients_data = {
        f"client-{i:05}": ClientData(
            Batch.of(train_x[i], train_y[i]), Batch.of(test_x[i], test_y[i]), Batch.of(*none)
        )
        for i in range(size.clients)
    }
    classes = tuple(map(str, range(size.classes)))
    return FederatedData(work, clients_data, {}, "classes", len(classes), classes, (), size.shape)


class Laps:
    """Takes the time of every round."""

    def __init__(self) -> None:
        self.clock, self.score = Clock(), 0.0

    def on_start(self, trainer: Any) -> None:
        self.clock.begin()

    def on_round(self, trainer: Any, seconds: float) -> None:
        self.score = trainer.latest["global"]
        self.clock.lap(self.score)

    def should_stop(self) -> bool:
        return False


def main() -> None:
    asked, out, laps = order(), OwnStdout(), Laps()
    work = asked.work
    words = [
        "data=motet_side:federation", f"data.work={work.name}", f"data.folder={asked.data}",
        f"net={NETS[work.net]}", f"method.lr={work.lr}", f"method.epochs={work.epochs}", f"method.batch={work.batch}",
        f"train.rounds={asked.rounds}", f"engine.compile={'yes' if asked.compiled else 'no'}", "save.models=none",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run(read(words=words), folder, laps)
    out.say(line("motet", asked, laps.clock, laps.score, own_peak(), ("motet",)))


if __name__ == "__main__":
    main()
