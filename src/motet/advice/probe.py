"""A short probe: a few methods for a few rounds, scored on validation rows. Test rows are neither looked at nor scored.

The last round is taken, so that validation rows choose nothing here either. The runs lie in a temporary folder, stop
before a run's end, and leave nothing behind. Knows recipes and the trainer. Does not know how advice is worded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from motet.client import seed_of
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.driver import play, start
from motet.engines.wrappers.counted import Counted
from motet.errors import MotetError, Stopped
from motet.report.client_outcomes import Predicted
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.prediction_rows import PredictionRows
from motet.runs.recipe import Recipe, Settings
from motet.runs.run import Run, run
from motet.runs.trainer import Trainer

ALONE = "local"


@dataclass(frozen=True)
class Cost:
    """What one client's round takes."""

    up: int  # bytes
    down: int
    seconds: float  # of the processor


@dataclass(frozen=True)
class Probed:
    """One method after the probe's rounds."""

    method: str
    metric: str = ""
    better: int = 1
    net: Settings = field(default_factory=dict)
    predicted: dict[str, Predicted] = field(default_factory=dict)  # each client's validation rows
    cost: Cost | None = None  # means over the probe's rounds and clients
    failure: str = ""  # why it could not be probed


def recipe_for(settings: Settings, method: str, rounds: int) -> Recipe:
    """The person's recipe with this method, for so many rounds and a round more, before which the probe stops."""
    train = dict(settings.get("train", {})) | {"rounds": rounds + 1, "patience": 0, "evaluate": rounds + 1}
    return recipes.check(settings | {"method": {"name": method}, "train": train})


def one_round(settings: Settings) -> tuple[int, Cost]:
    """The number of weights, and what a round of FedAvg costs at the client of median size; its reply is discarded."""
    resolved = resolve(recipe_for(settings, "fedavg", 1))
    clients = resolved.training.clients_data
    typical = sorted(clients, key=lambda c: clients[c].n)[len(clients) // 2]
    engine = Counted(replace(resolved.choice, name="loop").build({typical: clients[typical]}))
    turn = Turn(0, [typical], [typical], seed_of(resolved.recipe.seed, "turn", 0), None)
    with single_threaded():
        state = play(engine, resolved.method, start(engine, resolved.method, turn), turn)  # the first is slow
        engine.take()
        began = time.process_time()
        play(engine, resolved.method, state, turn)
        seconds = time.process_time() - began
    up, down = engine.take()[typical]
    weights = sum(v.numel() for v in resolved.task.w0.values())
    return weights, Cost(up, down, seconds)


class _AtLastRound:
    """An observer that stops a run after so many rounds, and keeps predictions for validation rows."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.seconds = rounds, 0.0
        self.rows: PredictionRows | None = None
        self.trainer: Trainer | None = None

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.seconds += seconds
        if trainer.number + 1 == self.rounds:
            self.rows = PredictionRows(trainer.task)
            turn = trainer.turn(trainer.number)
            trainer.score(
                trainer.evaluator, trainer.state, turn, "val", ("global", "personal"), self.rows.add
            )

    def should_stop(self) -> bool:
        return self.rows is not None


def probe(settings: Settings, methods: Sequence[str], rounds: int, say: Callable[[str], Any]) -> list[Probed]:
    """Each method for so many rounds, one after another; one that fails stops no other."""
    found = []
    for method in methods:
        say(f"{method}: {rounds} rounds")
        try:
            found.append(_probe_one(settings, method, rounds))
        except MotetError as e:
            found.append(Probed(method, failure=str(e).splitlines()[0]))
    return found


def _probe_one(settings: Settings, method: str, rounds: int) -> Probed:
    watch = _AtLastRound(rounds)
    resolved = resolve(recipe_for(settings, method, rounds))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "probe"
        try:
            run(resolved, folder, watch)
        except Stopped:
            pass
        else:
            raise MotetError(f"{method} ended before {rounds} rounds were over")
        traffic = _traffic(folder)
    trainer, rows = watch.trainer, watch.rows
    assert trainer is not None and rows is not None
    own = {
        client: Predicted(y, p, None if (weight == 1).all() else weight)
        for side, client, y, p, weight in rows.parts
        if side == "personal"
    }
    visits = rounds * max(len(resolved.training.clients_data), 1)
    cost = Cost(traffic[0] // visits, traffic[1] // visits, watch.seconds / visits)
    return Probed(method, trainer.metric, trainer.better, dict(resolved.recipe["net"]), own, cost)


def _traffic(folder: Path) -> tuple[int, int]:
    """Bytes up and down of training, over all rounds and clients."""
    rounds = Run(folder).rounds
    return int(rounds["up"].sum()), int(rounds["down"].sum())
