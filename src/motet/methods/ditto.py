"""Ditto: beside the global model, each client trains a personal model that stays near it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.core import PullAtHome, ShareAtHome, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import own_or
from motet.vec import Vec


class Ditto(FedAvg):
    """Ditto: beside the global model, each client trains a personal model that is held near it.

    Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization", Algorithm 1.
    Differs from the paper: the personal model is trained for as many epochs as the global one, and the
    global one is FedAvg's, weighted by numbers of examples (the authors' code takes the simple mean). A client that
    never took part uses the global one.
    """

    strength = "lam"
    lam: PullAtHome = 0.3  # pull of the personal model to the global one (lambda); 0 = local training
    home_share: ShareAtHome = 1.0  # share of lr for the personal model; auto: safe with lam, 1 if lr is given

    def private_steps(self, n: int) -> int:
        return 2 * super().private_steps(n)  # of both models

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, w: Vec, v: Vec, data: Data) -> tuple[Tree, Tree]:
        own = self.descend(self.near, v, data, given=w, lr=self.home_share * self.rate(data))
        return self.descend(self.task.loss, w, data), own

    def near(self, v: Vec, batch: Batch, w: Vec) -> Tensor:  # h_k(v; w) of the paper
        return self.task.loss(v, batch) + self.lam / 2 * (v - w).sq()

    def personal(self, w: Vec, v: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, own_or(self.task, v, w))
