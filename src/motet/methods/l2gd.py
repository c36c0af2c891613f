"""L2GD: clients train models of their own, and a coin says when each steps towards the mean of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Data, seed_of
from motet.core import MethodUnfit, NotNegative, Positive, Rate, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import LocalSGD
from motet.parts.personal_parts import OwnModel, own_or
from motet.vec import Vec


class L2GD(OwnModel, LocalSGD):
    """L2GD: clients train models of their own, and a coin says when each takes a step towards the mean of all.

    Hanzely & Richtarik 2020, "Federated Learning of a Mixture of Global and Local Models", Algorithm 1 (loopless local
    gradient descent) for (1/n) sum_i f_i(x_i) + lam / (2n) sum_i |x_i - mean|^2. With probability 1 - p all clients
    take a gradient step, and with probability p the step x_i + theta (mean - x_i), where theta = lr lam (1 - p) / p.
    Clients talk only where a gradient step is followed by a step to the mean: that is a round here. It has 1 / p local
    steps on average and then 1 / (1 - p) steps to the same mean, both drawn for all clients at once.
    Differs from the paper: gradients are those of minibatches; lr stands for alpha / (n (1 - p)); theta is cut at 1;
    clients may be absent, and one that comes for the first time starts from the mean.
    lam 0 is local training; theta 1 is FedAvg whose clients count alike.
    """

    beyond_budget = "numbers of steps are drawn by chance in every round"

    strength = "lam"
    lr: Rate = 0.1  # local learning rate; auto = safe for network and data
    p: Positive = 0.1  # probability of a step to the mean, below 1; a round has 1 / p local steps on average
    lam: NotNegative = 0.1  # pull to the mean of clients' models (lambda)

    def check(self) -> None:
        super().check()
        if self.p >= 1:
            raise MethodUnfit(f"method.p is {self.p:g}; it must be below 1.\nhint: method.p=0.1")

    def start(self, turn: Turn) -> Tree | Talk:
        return {"mean": self.task.w0, "pulls": torch.tensor(0)}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        steps, pulls = drawn(1 - self.p, turn.seed, "steps"), drawn(self.p, turn.seed, "pulls")
        even = dict.fromkeys(turn.cohort, 1.0)
        mean = yield average(self.train, turn.cohort, send=s | {"steps": torch.tensor(steps)}, weights=even)
        return {"mean": mean, "pulls": torch.tensor(pulls)}

    def global_model(self, s: Tree) -> Vec:
        return s["mean"]

    @verb
    def train(self, s: Tree, x: Vec, data: Data) -> tuple[Tree, Tree]:
        x = self.descend(self.task.loss, self.pulled(s, x), data, lr=self.lr, steps=s["steps"])
        return x, x

    def pulled(self, s: Tree, x: Vec) -> Vec:
        """x_i after the steps to the mean with which the last round ended."""
        theta = min(self.lr * self.lam * (1 - self.p) / self.p, 1.0)
        x = own_or(self.task, x, s["mean"])
        return x + (1 - (1 - theta) ** s["pulls"]) * (s["mean"] - x)

    def personal(self, s: Tree, x: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, self.pulled(s, x))

    def trained_model(self, s: Tree, reply: Vec, x: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, x)

    def rows_trained(self, n: int) -> int:
        return min(super().rows_trained(n), self.batch)  # a round may have one step


def drawn(again: float, seed: int, what: str) -> int:
    """How often in a row, at least once, where each time is followed by another one with this probability."""
    u = 1 - seed_of(seed, what) / 2**62  # in (0, 1]
    return 1 + int(math.log(u) / math.log(again))
