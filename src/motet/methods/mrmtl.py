"""MR-MTL: each client has a model of its own that is held near the mean of all."""

from __future__ import annotations

from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import OwnModel
from motet.vec import Vec


class MRMTL(OwnModel, FedAvg):
    """MR-MTL: each client trains a model of its own that is held near the mean of all clients' models.

    Liu et al. 2022, "On Privacy and Personalization in Cross-Silo Federated Learning", Algorithm 1 (mean-regularised
    multi-task learning; without its private training, which motet's guards add). In a round a client goes on from its
    own w_k by f_k(w_k) + lam/2 |w_k - mean|^2 and sends w_k. Unlike Ditto there is no other model.
    As in the paper, clients count alike in the mean. lam 0 is local training; a large lam is close to FedAvg.
    """

    private_steps = FedAvg.private_steps

    strength = "lam"
    lam: NotNegative = 0.03  # pull to the mean of clients' models (lambda); 0 = local training

    def penalty(self) -> float:
        return super().penalty() + self.lam

    def round(self, mean: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=mean, weights=dict.fromkeys(turn.cohort, 1.0)))

    @verb
    def train(self, mean: Vec, own: Vec, data: Data) -> tuple[Tree, Tree]:
        w = self.descend(self.near, own, data, given=mean)
        return w, w

    def near(self, w: Vec, batch: Batch, mean: Vec) -> Tensor:
        return self.task.loss(w, batch) + self.lam / 2 * (w - mean).sq()
