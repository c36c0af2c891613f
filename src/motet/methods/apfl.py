"""APFL: a client's model is a mixture of the global model and one of its own, and it learns how much of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.client.batchnorm import with_statistics_of
from motet.core import NotNegative, Share, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import own_or
from motet.vec import Vec


class APFL(FedAvg):
    """APFL: a client's model is a mixture of the global model and one of its own, and it learns how much of each.

    Deng et al. 2020, "Adaptive Personalized Federated Learning", Algorithm 1. On each minibatch the local version of
    the global model w takes a step along grad f(w), and v a step along the gradient in v of f(alpha v + (1 - alpha) w),
    with the w before that step. At the start of a round alpha takes a step along <v - w, grad f(mixture)>.
    Differs from the paper: alpha's step is taken on a minibatch of its own. The mixture that a client uses has the
    server's w, not the client's last one; a client that never took part uses w alone. w is weighted by numbers of
    examples. clip cuts the gradients of w and v as one.
    """

    alpha: Share = 0.5  # share of the client's own model v in the mixture, to begin with
    adaptive: bool = True  # whether each client learns its alpha
    alpha_lr: NotNegative = 0.0  # learning rate of alpha; 0 = lr, as in the paper

    def private_steps(self, n: int) -> int:
        return super().private_steps(n) + self.adaptive  # a step of alpha

    def join(self, data: Data) -> Tree:
        return {"v": self.task.w0, "alpha": torch.tensor(self.alpha)}

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        alpha = self.learned(w, keep, data) if self.adaptive else keep["alpha"]
        both = self.descend(self.two_losses, Vec.join(w=w, v=keep["v"]), data, given=alpha)
        w, v = both.split("w", "v")
        return w, {"v": v, "alpha": alpha}

    def learned(self, w: Vec, keep: Tree, data: Data) -> Tensor:
        how: Any = {
            "optimiser": "sgd",
            "momentum": 0.0,
            "decay": 0.0,
            "clip": None,
            "steps": 1,
            "step": self.clamp,
        } | ({"lr": self.alpha_lr} if self.alpha_lr else {})
        start, given = Vec(alpha=keep["alpha"]), (w, keep["v"])
        return self.descend(self.loss_of_alpha, start, data, given=given, **how)["alpha"]

    def loss_of_alpha(self, a: Vec, batch: Batch, given: tuple[Vec, Vec]) -> Tensor:
        return self.task.loss(mixture(*given, a["alpha"]), batch)

    def clamp(self, a: Vec, g: Vec, given: Tree, lr: Tensor) -> Vec:
        return (a - lr * g).map(lambda v, _: v.clamp(0, 1))

    def two_losses(self, both: Vec, batch: Batch, alpha: Tensor) -> Tensor:
        w, v = both.split("w", "v")
        fixed = w.map(lambda a, _: a.detach())
        return self.task.loss(w, batch) + self.task.loss(mixture(fixed, v, alpha), batch)

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, mixture(w, own_or(self.task, keep["v"], w), keep["alpha"]))


def mixture(w: Vec, v: Vec, alpha: Tensor) -> Vec:
    """v learns the mixture's statistics of BatchNorm."""
    return with_statistics_of(alpha * v + (1 - alpha) * w, v)
