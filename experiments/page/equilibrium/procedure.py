"""The deviation test: run PAGE until neither side improves, then let one player deviate for one round.

A client's pay-off 1 / f_i(w_i) of a round depends on its own action and on W(t) alone, so all clients can be
tried at once: in trial k each of them plays action k, from the same state and with the same orders of examples.
Validation losses are noisy, and the best of nine trials is high by luck; nine other orders of examples with the
client's own action say how high. The server's pay-off is that of W(t+1) on its proxy set, of the round's models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from motet.engines.driver import play
from motet.methods.page import PAGE
from motet.parts import games
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.experiment import seeded
from motet.runs.recipe import Recipe
from motet.runs.run import run
from motet.runs.store import Store
from motet.runs.trainer import Trainer
from motet.vec import stack

ACTIONS = [*product((-1.0, 0.0, 1.0), repeat=2)]  # of eta and alpha, in their ranges
TRIALS = len(ACTIONS)
OWN = (float("nan"), float("nan"))  # what the client itself would play


class DeviatingPAGE(PAGE):
    """PAGE whose clients play a given action for one round; nan stands for their own."""

    action: tuple[float, float] = OWN

    def lead(self, keep: Any, bonus: Any, seed: Any) -> Any:
        own, keep = super().lead(keep, bonus, seed)
        given = torch.tensor(self.action)
        a = torch.where(given.isnan(), own, given)
        return a, keep | {"a": a}


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {row: {"values": {}, "failures": []} for row in settings["rows"]}
    for seed in settings["seeds"]:
        parts = {k: settings[k] for k in ("data", "net", "method", "train", "save")}
        done = run(recipes.check(seeded(parts, seed)), out / f"seed{seed}")
        say(f"seed {seed}: {done!r}, {len(done.rounds)} rounds")
        for row, found in zip(rows, tried(done.folder), strict=False):
            known = rows[row]["values"]
            for column, value in found.items():
                known.setdefault(column, []).append(value)
            rows[row]["seconds"] = rows[row].get("seconds", 0.0) + float(done.facts["seconds"]) / 3
    return rows


def tried(folder: Path) -> list[dict[str, float]]:
    """How each player fares that deviates from the run's last state: clients, by luck alone, the server."""
    store = Store(folder, writing=True)
    try:
        trainer = Trainer(resolve(Recipe(store.facts()["settings"])), store)
        trainer.load()
        since = float(store.facts().get("equilibrium", trainer.number) + 1)
        stage = Stage(trainer)
        base, models, after = stage.played(OWN)
        others = np.array([stage.played(a)[0] for a in ACTIONS])
        lucky = np.array([stage.played(OWN, 1 + k)[0] for k in range(TRIALS)])
        server = np.array([stage.earned(models, p) for p in shares(stage.weights(after))])
    finally:
        store.close()
    best = np.array([float(after["metrics"]["server"])])
    found = [rise(base, others), rise(base, lucky), rise(best, server[:, None])]
    return [one | {"round": since} for one in found]


class Stage:
    """The round after a run's last one, which can be played again and again."""

    def __init__(self, trainer: Trainer) -> None:
        m = trainer.method
        self.method = DeviatingPAGE(**{f.name: getattr(m, f.name) for f in fields(m)})  # type: ignore[arg-type]
        self.trainer, self.engine, self.now = trainer, trainer.engine.engine, trainer.number

    def played(self, action: tuple[float, float], order: int = 0) -> tuple[np.ndarray, Any, Any]:
        """Clients' pay-offs, their models, and the server's state, with another order of examples if asked."""
        turn = replace(self.trainer.turn(self.now + 1), seed=self.trainer.turn(self.now + 1 + order).seed)
        after = play(self.engine, replace(self.method, action=action), self.trainer.state, turn)
        kept = [self.engine.keeps.get(c) for c in self.engine.clients]
        self.engine.keeps.rewind(self.now)
        return np.array([float(k["r"]) for k in kept]), stack([k["w"] for k in kept]), after

    def weights(self, after: Any) -> torch.Tensor:
        at = torch.tensor([after["seats"][c] for c in self.engine.clients])
        return self.method.server(len(after["now"])).weights(after["a"], at)

    def earned(self, models: Any, p: torch.Tensor) -> float:
        w = games.weighted_mean(models, p)
        return float(self.method.earned(w, p, torch.zeros(len(p)), self.trainer.proxy))


def shares(p: torch.Tensor) -> list[torch.Tensor]:
    """Equal weights, and each client's weight doubled or nothing."""
    found = [torch.full_like(p, 1 / len(p))]
    for k, times in product(range(len(p)), (0.0, 2.0)):
        other = p.clone()
        other[k] *= times
        found.append(other / other.sum())
    return found


def rise(base: np.ndarray, others: np.ndarray) -> dict[str, float]:
    """Of the best of others, (trials, players), over what was played: the middle of all players."""
    best = others.max(0) / base - 1
    gains = float((best > 0.1).mean())
    return {
        "pay-off": float(np.median(base)),
        "best rise": float(np.median(best)),
        "would gain a tenth": gains,
    }
