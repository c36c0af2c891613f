"""FedDBE: each client keeps the bias of its features, so that the shared layers need not learn it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import refuse_what_follows_head
from motet.parts.prototypes import MeasuredFeatures
from motet.vec import Vec


class FedDBE(MeasuredFeatures, FedAvg):
    """FedDBE: FedAvg whose clients each keep a vector that is added to the features, and hold mean features together.

    Zhang et al. 2023, "Eliminating Domain Bias for Federated Learning in Representation Space", Algorithm 1 (DBE with
    FedAvg). Scores are head(f(x) + p), where p, the client's representation bias, is trained with the model and never
    sent. The mean of f over a minibatch is held near z, the mean over all clients, by kappa times their mean squared
    difference.
    Differs from the paper: z is measured once, by the clients of the first round and with the model that it leads to;
    that round has no such term. The paper's clients measure z with models that they trained alone. The mean of f is
    that of the minibatch (the paper's momentum mu is 1).
    """

    strength = "kappa"
    measuring = ("mean_features",)
    kappa: NotNegative = 1.0  # pull of mean features to those of all clients; the paper: 1 to 200

    def check(self) -> None:
        super().check()
        refuse_what_follows_head(self, "adds a vector to the features that the last layer sees")

    def start(self, turn: Turn) -> Tree | Talk:
        return {"w": self.task.w0, "z": torch.zeros(self.task.width), "known": torch.tensor(0.0)}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        s = s | {"w": (yield average(self.train, turn.cohort, send=s))}
        if s["known"]:
            return s
        z = yield average(self.mean_features, turn.cohort, send=s["w"])
        return s | {"z": z, "known": torch.tensor(1.0)}

    def global_model(self, s: Tree) -> Vec:
        return s["w"]

    def download(self, s: Tree, client: str) -> Tree:
        return s["w"]

    def join(self, data: Data) -> Tree:
        return Vec(p=torch.zeros(self.task.width))

    @verb
    def train(self, s: Tree, p: Vec, data: Data) -> tuple[Tree, Tree]:
        given = (s["z"], self.kappa * s["known"])
        both = self.descend(self.without_bias, Vec.join(w=s["w"], own=p), data, given=given)
        w, p = both.split("w", "own")
        return w, p

    def without_bias(self, both: Vec, batch: Batch, given: tuple[Tensor, Tensor]) -> Tensor:
        w, own = both.split("w", "own")
        scores, f = self.shifted_from(w, own, batch.x)
        mean = batch.live @ f / batch.live.sum().clamp(min=1e-12)
        loss = batch.mean(self.task.per_example_loss(scores, batch.y, batch.live))
        return loss + given[1] * (mean - given[0]).square().mean()

    def shifted_from(self, w: Vec, own: Vec, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.task.predict_from(w, x)[1]
        return self.task.top(w.pick(self.task.head), f + own["p"]), f

    @verb
    def mean_features(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        f = self.row_features(w, data)
        return data.live @ f / data.live.sum(), keep

    def personal(self, w: Vec, p: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.shifted, w, p)

    def shifted(self, w: Vec, p: Vec, x: Tensor) -> Tensor:
        return self.shifted_from(w, p, x)[0]

    def numbers_measured(self, verb: str, reply: int, rounds: int) -> int:
        return reply  # once in a run
