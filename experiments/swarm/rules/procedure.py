"""Every rule on every task with as many losses: how many messages until least squares, or how far it gets.

The conversations are driven here, message by message, instead of by runs: a run ends with a round, and a round of one
message each would spend most of its time on writing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[3]))  # recipes name experiments.swarm.rules.losses

from motet.client import seed_of
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.driver import play, start
from motet.runs import build
from motet.runs import experiment as experiments
from motet.runs.recipe import Recipe

NEAR = 1 + 0.01 / 22.0048  # of least squares: as near as an MSE of 22.0148 on Boston


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for planned in experiments.find("swarm/rules").plan(out.name, settings["rows"], settings["seeds"]):
        row = rows.setdefault(planned.row, {"values": {}, "failures": [], "seconds": 0.0})
        began = time.process_time()
        with single_threaded():
            found = searched(planned.recipe)
        row["seconds"] += time.process_time() - began
        for key, value in found.items():
            row["values"].setdefault(key, []).append(value)
        said = ", ".join(f"{k} {v:.5g}" for k, v in found.items())
        say(f"  {planned.row}, seed {planned.seed}: {said} ({row['seconds']:.0f} s)")
    return rows


def searched(recipe: Recipe) -> dict[str, float]:
    """Messages until the loss is near least squares (nan if never, or if there is no such thing), the loss that is
    trained after the last message, and the test score."""
    made = build.resolve(recipe)
    method, engine = replace(made.method, stretch=1), made.choice.build(made.training.clients_data)
    goal = NEAR * least_squares(made) if made.federated.kind == "numbers" else -np.inf

    def turn(number: int) -> Turn:
        return Turn(number, engine.clients, engine.clients, seed_of(recipe.seed, number))

    state, sent = start(engine, method, turn(-1)), 1
    while sent < recipe.train.rounds and trained(method, state) > goal:
        state, sent = play(engine, method, state, turn(sent - 1)), sent + 1
    loss = trained(method, state)
    return {
        "messages": sent if loss <= goal else np.nan,
        "loss": loss,
        "test": tested(made, engine, state, turn(sent)),
    }


def trained(method: Any, state: Any) -> float:
    return float(method.metrics(state)["loss"])


def least_squares(made: build.Resolved) -> float:
    parts = [c.train.take() for c in made.training.clients_data.values()]
    x = torch.cat([p.x.flatten(1).double() for p in parts])
    wide = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    y = torch.cat([p.y.double() for p in parts])
    best = torch.linalg.lstsq(wide, y[:, None], driver="gelsd").solution[:, 0]
    return float((wide @ best - y).square().mean())


def tested(made: build.Resolved, engine: Any, state: Any, turn: Turn) -> float:
    """The mean of clients' test scores: accuracy in percent, RMSE, or the user's own loss; nan without test rows."""
    if not all(len(c.test) for c in made.federated.clients_data.values()):
        return float("nan")
    _, found = engine.evaluate(made.method, state, turn, "test", ("global",))
    scores = found["global"]
    if "own" in scores:
        return float(scores["own"].nanmean())
    return 100 * float(scores["accuracy"].mean()) if "accuracy" in scores else float(scores["rmse"].mean())
