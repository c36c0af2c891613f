"""MOON: local training keeps features near the global model's and away from those of the client's last model."""

from __future__ import annotations

from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Positive, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.features import contrast
from motet.parts.personal_parts import refuse_without_linear_head
from motet.vec import Vec


class MOON(FedAvg):
    """MOON: a contrastive loss keeps features near the global model's and away from those of the client's last model.

    Li et al. 2021, "Model-Contrastive Federated Learning", Algorithm 1: beside the task's loss, each example costs
    -log(exp(sim(z, z_glob) / tau) / (exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau))), with cosine similarity.
    Differs from the paper: z are the features that the last layer sees; no projection head is added to the network.
    A client that comes for the first time has the initial weights as its last model. mu 0 is FedAvg.
    """

    private_steps = FedAvg.private_steps

    strength = "mu"
    mu: NotNegative = 1.0  # weight of the contrastive loss; the paper tries 0.1 to 10
    temperature: Positive = 0.5  # of the contrastive loss (tau); the paper: 0.5

    def check(self) -> None:
        super().check()
        refuse_without_linear_head(self, "compares features that the last layer sees")

    def remarks(self) -> list[str]:
        text = "moon compares features, and a network of one layer has none of its own: this is fedavg (hint: net=mlp)"
        return [] if self.task.body else [text]

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, w: Vec, previous: Vec, data: Data) -> tuple[Tree, Tree]:
        u = self.descend(self.contrasted, w, data, given=(w, previous))
        return u, u

    def contrasted(self, u: Vec, batch: Batch, given: tuple[Vec, Vec]) -> Tensor:
        scores, z = self.task.predict_from(u, batch.x)
        z_glob, z_prev = (self.task.predict_from(v, batch.x)[1] for v in given)
        con = contrast(z, z_glob, z_prev, self.temperature)
        return batch.mean(self.task.per_example_loss(scores, batch.y, batch.live) + self.mu * con)
