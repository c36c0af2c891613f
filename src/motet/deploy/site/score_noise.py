"""Scores that leave a site with noise: how many rows each of them stays uncertain by.

A server that chooses the weights which it has scored can ask, say, how many patients are older than 61: accuracy,
loss and AUC of such a model are counts of rows. With noise of about one row on every score, and few scorings in a
run, it cannot follow a count from one question to the next. A row's error is bounded first, so that no row counts
more than another. A metric of the site owner's own has no known range, and leaves as it is.
Knows predictions, metrics and how much one row can change them. Does not know letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from motet.client import ClientTest, Task
from motet.core import Client, Method, Tree, Verb
from motet.deploy.site.policy import Policy
from motet.engines.evaluate import scores_at_home

Draw = Callable[[Sequence[int]], Tensor]
_DEVIATIONS = (
    3.0  # largest error of one row that is predicted as a number, in standard deviations of the target
)


def scoring(policy: Policy, draw: Draw, method: Method, client: Client, made: Verb) -> Verb:
    """What gives the scores of predictions, with noise if the policy has it."""
    if not policy.score_noise:
        return partial(scores_at_home, method, client, made)
    return partial(ScoreNoise(policy.score_noise, policy.loss_bound, draw).scores, method, client, made)


@dataclass(frozen=True)
class ScoreNoise:
    """Noise for scores of one letter."""

    rows: float  # that each score stays uncertain by
    loss_bound: float  # largest loss of one row, for classes
    draw: Draw  # noise for a score that one row changes by 1

    def scores(
        self, method: Method, client: Client, job: Verb, sent: Tree, keep: Tree, who: ClientTest
    ) -> Tree:
        """As `scores_at_home`: all that leaves, by side."""
        found, keep = job(sent, keep, who)
        if "y" in found:
            return self.by_side(method.task, client, found), keep
        return {part: self.by_side(method.task, client, f)["trained"] for part, f in found.items()}, keep

    def by_side(self, task: Task, client: Client, found: Tree) -> Tree:
        """One draw for each model: a personal model that is the global one has its scores."""
        sides = {side: z for side, z in found.items() if side not in ("y", "live", "x")}
        y, x = found["y"], found.get("x")
        made = {s: self.of(task, client, z, y, x) for s, z in sides.items() if isinstance(z, Tensor)}
        return {side: made[side if side in made else "global"] for side in sides}

    def of(
        self, task: Task, client: Client, z: Tensor, y: Tensor, x: Tensor | None = None
    ) -> dict[str, Tensor]:
        if task.kind == "numbers":
            z = y + (z - y).clamp(-_DEVIATIONS, _DEVIATIONS)
        live = torch.ones(1, len(y))
        inputs = None if x is None else x[None]
        exact = {k: float(v[0]) for k, v in task.measured([client], z[None], y[None], live, inputs).items()}
        noised = self.of_classes if task.kind == "classes" else self.of_numbers
        return {k: torch.tensor(v, dtype=torch.float64) for k, v in noised(task, exact, z, y).items()}

    def of_classes(self, task: Task, exact: dict[str, float], z: Tensor, y: Tensor) -> dict[str, float]:
        n, rarest = len(y), int(np.unique(y.numpy(), return_counts=True)[1].min())
        lost = -torch.log_softmax(z.double(), -1).gather(-1, y[:, None])
        loss = max(float(lost.clamp(max=self.loss_bound).mean()) + self.noise(self.loss_bound / n), 0.0)
        changes = {"accuracy": 1 / n, "brier": 1 / n, "ece": 1 / n, **dict.fromkeys(_BY_CLASS, 1 / rarest)}
        found = {k: min(max(exact[k] + self.noise(c), 0.0), 1.0) for k, c in changes.items()}
        found = {k: math.nan if math.isnan(exact[k]) else v for k, v in found.items()}
        found["accuracy"] = max(found["accuracy"], 1 - loss / math.log(2))  # a wrong row costs that and more
        return exact | found | {"loss": loss}

    def of_numbers(self, task: Task, exact: dict[str, float], z: Tensor, y: Tensor) -> dict[str, float]:
        n = len(y)
        loss = max(exact["loss"] + self.noise(_DEVIATIONS**2 / n), 0.0)
        rmse = math.sqrt(loss) * task.scale
        mae = min(max(exact["mae"] + self.noise(_DEVIATIONS * task.scale / n), 0.0), rmse)
        r2 = 1 - (1 - exact["r2"]) * loss / exact["loss"] if exact["loss"] else exact["r2"]
        return exact | {"loss": loss, "rmse": rmse, "mae": mae, "r2": r2}

    def noise(self, change: float) -> float:
        """Noise for a score that one row changes by so much."""
        return self.rows * change * float(self.draw(()))


_BY_CLASS = ("balanced", "f1", "auc")  # where a row of a rare class counts more
