"""FedDyn: a regulariser that changes from round to round."""

from __future__ import annotations

from torch import Tensor

from motet.client import Batch, Data
from motet.client.batchnorm import with_statistics_of
from motet.core import Positive, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FedDyn(FedAvg):
    """FedDyn: a regulariser that changes from round to round, so that local optima agree with the global one.

    Acar et al. 2021, "Federated Learning Based on Dynamic Regularization", Algorithm 1. A client keeps
    the gradient g_i of its own loss at its last model; the server keeps h, and theta = mean - h / alpha.
    Differs from the paper: the minimum of a client's loss is approached by `epochs` of gradient descent.
    """

    private_steps = FedAvg.private_steps
    counts_cohort = True

    strength = "alpha"
    alpha: Positive = 0.01  # strength of the regulariser

    def penalty(self) -> float:
        return super().penalty() + self.alpha

    def start(self, turn: Turn) -> Tree | Talk:
        return {"theta": self.task.w0, "h": self.task.w0.zeros()}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        even = dict.fromkeys(turn.cohort, 1.0)
        mean = yield average(self.train, turn.cohort, send=s["theta"], weights=even)
        share = len(turn.cohort) / len(turn.clients)
        h = s["h"] - self.alpha * share * (mean - s["theta"])
        return {"theta": with_statistics_of(mean - h / self.alpha, mean), "h": h}

    def global_model(self, s: Tree) -> Vec:
        return s["theta"]

    def download(self, s: Tree, client: str) -> Tree:
        return s["theta"]

    def join(self, data: Data) -> Tree:
        return self.task.w0.zeros()

    @verb
    def train(self, theta: Vec, g: Vec, data: Data) -> tuple[Tree, Tree]:
        u = self.descend(self.dynamic, theta, data, given=(theta, g))
        return u, g - self.alpha * (u - theta)

    def dynamic(self, u: Vec, batch: Batch, given: tuple[Vec, Vec]) -> Tensor:
        theta, g = given
        return self.task.loss(u, batch) - g.dot(u) + self.alpha / 2 * (u - theta).sq()
