"""FedProx: FedAvg with a pull towards the global model."""

from __future__ import annotations

from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FedProx(FedAvg):
    """FedProx: FedAvg with a pull towards the global model during local training.

    Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2.
    Differs from the paper: every client does the same number of epochs, and replies are weighted by
    numbers of examples instead of sampling clients with those probabilities.
    The pull matters where local training goes far: many epochs, large rates. With one epoch at a safe rate clients
    hardly drift apart, and FedProx is close to FedAvg whatever mu is. The paper tries mu from 0.001 to 1.
    """

    private_steps = FedAvg.private_steps

    strength = "mu"
    mu: NotNegative = 0.1  # strength of the pull towards the global model

    def penalty(self) -> float:
        return super().penalty() + self.mu

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.near, w, data, given=w), keep

    def near(self, u: Vec, batch: Batch, w: Vec) -> Tensor:  # h_k(w; w^t) of the paper
        return self.task.loss(u, batch) + self.mu / 2 * (u - w).sq()
