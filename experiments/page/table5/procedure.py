"""What the agents cost: the parts of a round, timed one by one in one process, on one thread.

The paper gives milliseconds per byte of a model; only the ratios can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.func import vmap

from motet.client import seed_of
from motet.client.visit import single_threaded
from motet.core import Turn
from motet.engines.driver import play, start
from motet.methods.fedavg import FedAvg
from motet.methods.page import PAGE
from motet.parts import games
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.experiment import seeded
from motet.vec import stack

TRAINING = {"batch": 5, "decay": 1e-5, "clip": 10.0}
WARM = 2  # rounds before anything is timed; agents that are not to learn yet take the same time


def perform(settings: dict[str, Any], out: Path, jobs: int, say: Callable[[str], None]) -> dict[str, Any]:
    rows: dict[str, Any] = {row: {"values": {}, "failures": []} for row in settings["rows"]}
    for seed in settings["seeds"]:
        with single_threaded():
            found = Timed(seed, settings["clients"]).parts(settings["rounds"])
        for row in rows:
            values = {"seconds": found[row], "relative to training": found[row] / found["local training"]}
            for column, value in values.items():
                rows[row]["values"].setdefault(column, []).append(value)
    return rows


class Timed:
    """One federation, and PAGE after some rounds."""

    def __init__(self, seed: int, clients: int) -> None:
        data = {"name": "synthetic", "generator": "page", "clients": clients, "unseen": 0.0}
        words = {"data": data, "net": {"name": "logistic"}, "engine": {"compile": "yes"}}
        found = resolve(recipes.check(seeded(words | {"method": {"name": "fedavg"}}, seed)))
        federation, self.task, self.seed = found.federated, found.task, seed
        self.build = partial(found.choice.build, federation.clients_data)
        self.proxy = federation.proxy.take() if federation.proxy else None
        agent = replace(PAGE.agent, capacity=300)
        self.page = PAGE(self.task, lr_min=0.001, lr_max=0.1, epochs_max=20, agent=agent, **TRAINING)  # type: ignore[arg-type]

    def turn(self, engine: Any, number: int) -> Turn:
        return Turn(number, engine.clients, engine.clients, seed_of(self.seed, number), self.proxy)

    def parts(self, rounds: int) -> dict[str, float]:
        """Seconds of each part of a round, the median of some rounds."""
        fedavg, plain = FedAvg(self.task, lr=0.1, epochs=20, **TRAINING), self.build()  # type: ignore[arg-type]
        w = start(plain, fedavg, self.turn(plain, -1))
        play(plain, fedavg, w, self.turn(plain, 0))  # compiles
        training = median(rounds, lambda k: play(plain, fedavg, w, self.turn(plain, k)))
        engine, page = self.build(), self.page
        state = start(engine, page, self.turn(engine, -1))
        for number in range(WARM):
            state = play(engine, page, state, self.turn(engine, number))
        kept = stack([engine.keeps.get(c) for c in engine.clients])
        whole = median(rounds, lambda k: play(engine, page, state, self.turn(engine, WARM + k)))
        return {"local training": training, "a whole round": whole} | self.agents(
            state, kept, len(engine.clients), rounds
        )

    def agents(self, state: Any, kept: Any, many: int, rounds: int) -> dict[str, float]:
        page, models, proxy = self.page, kept["w"], self.proxy
        assert proxy is not None
        server, at, seeds = page.server(len(state["now"])), torch.arange(many), torch.arange(many)
        p, f = torch.full((many,), 1 / many, dtype=torch.float64), torch.ones(many)
        examples = games.evenly_spaced(proxy, page.proxy_rows)

        def reward(p: torch.Tensor) -> torch.Tensor:
            return page.earned(games.weighted_mean(models, p), p, f, proxy)

        lead = vmap(lambda me, seed: page.lead(me, torch.zeros(()), seed))
        return {
            "model aggregation": median(rounds, lambda k: games.weighted_mean(models, p)),
            "local agents": median(rounds, lambda k: lead(kept, seeds + k)),
            "global agent": median(rounds, lambda k: server.learn(state, state["now"], torch.zeros(()), k)),
            "candidates of p": median(rounds, lambda k: server.search(state["a"], state["a"], at, reward)),
            "scores of models": median(rounds, lambda k: games.accuracies(self.task, models, examples)),
        }


def median(rounds: int, do: Callable[[int], Any]) -> float:
    """Of the processor's seconds: others may use the machine."""
    taken = []
    for k in range(rounds):
        began = time.process_time()
        do(k)
        taken.append(time.process_time() - began)
    return float(torch.tensor(taken).median())
