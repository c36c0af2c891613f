"""Leaving one client out, and every client's model at every other site: two matrices of a run.

Both are measured on validation rows. Knows trainers and their engines. Does not know Shapley values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from motet.audits.replay import innermost, replaying, without
from motet.client import predicted
from motet.core import Client, Method
from motet.errors import MotetError, RunError
from motet.runs.build import Resolved
from motet.runs.finish import calls
from motet.runs.run import NoProgress
from motet.runs.trainer import Observer, Trainer

Array = np.ndarray[Any, Any]
Scores = dict[Client, float]  # by site
MOST_MODELS = 60  # clients whose models are tried at each other's sites


def final_scores(trainer: Trainer, side: str, by: str) -> Scores:
    """What the reported models are worth at each site, on validation rows."""
    best = trainer.reported()
    clients, found = innermost(trainer.evaluator).evaluate(
        trainer.method, best.state, trainer.turn(best.round), "val", (side,)
    )
    if side not in found:
        return {}
    scores = found[side]
    worth = -scores["loss"] if by == "loss" else trainer.better * scores[trainer.metric]
    rows = zip(clients, worth.tolist(), scores["n"], strict=True)
    return {c: w for c, w, n in rows if n > 0 and not math.isnan(w)}


def leave_one_out(
    resolved: Resolved,
    clients: Sequence[Client],
    whole: Scores,
    side: str,
    by: str,
    begun: Callable[[Client], Observer | None],
) -> dict[Client, Scores]:
    """By client that is left out, what each other site loses without it: each is a replay of the run."""
    found: dict[Client, Scores] = {}
    for client in clients:
        with replaying(without(resolved, client)) as trainer:
            try:
                trainer.run(begun(client) or NoProgress())
            except MotetError as e:
                why = str(e).splitlines()[0]
                raise RunError(
                    f"without client {client} the run cannot be played: {why}\nhint: --no-leave-one-out"
                ) from e
            scores = final_scores(trainer, side, by)
        found[client] = {site: whole[site] - scores[site] for site in whole if site in scores}
    return found


def personal_predictors(trainer: Trainer, most: int) -> dict[Client, Callable[[Any], Any]]:
    """The personal models of the reported round, of so many clients at most."""
    best, evaluator = trainer.reported(), innermost(trainer.evaluator)
    turn = trainer.turn(best.round)
    models: dict[Client, Callable[[Any], Any]] = {}
    for client, trees in evaluator.personal_models(trainer.method, best.state, turn):
        models[client] = partial(_function(trainer, best, turn, client), *trees)
        if len(models) == most:
            break
    return models


def cross_matrix(trainer: Trainer, by: str = "metric") -> dict[Client, Scores]:
    """By client whose personal model it is, its score on the validation rows of every site."""
    models = personal_predictors(trainer, MOST_MODELS)
    rows = {c: d.val.take() for c, d in trainer.federated.clients_data.items() if len(d.val) and c in models}
    name = "loss" if by == "loss" else trainer.metric
    found: dict[Client, Scores] = {}
    for owner, model in models.items():
        found[owner] = {}
        for site, val in rows.items():
            z = predicted(model, val)
            measured = trainer.task.measured([site], z[None], val.y[None], val.live[None])
            found[owner][site] = float(measured[name][0])
    return found


def _function(trainer: Trainer, best: Any, turn: Any, client: Client) -> Callable[..., Any]:
    """The function that a personal model's trees are arguments of."""
    name = calls(trainer, best, turn, client)
    method: Method = trainer.method
    found: Callable[..., Any] = getattr(method, name, None) or getattr(trainer.task, name)
    return found
