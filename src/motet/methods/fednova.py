"""FedNova: clients that take more steps do not pull the global model to themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.client.batchnorm import with_statistics_of
from motet.core import MethodUnfit, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FedNova(FedAvg):
    """FedNova: clients send their mean direction, not their whole way, so that many steps give no client more weight.

    Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    section 4: d_i = (x_i - x) / |a_i|_1, and x <- x + (sum p_i |a_i|_1) (sum p_i d_i), with p_i by numbers of
    examples. Without momentum |a_i|_1 is the number of steps; momentum rho makes it the sum of
    (1 - rho^k) / (1 - rho) over steps k. Where all clients take as many steps, this is FedAvg.
    Differs from the paper: with Adam or AdamW, which it does not treat, |a_i|_1 is the number of steps.
    """

    replies_updates = False

    private_steps = FedAvg.private_steps

    def check(self) -> None:
        super().check()
        if self.momentum == 1:
            raise MethodUnfit(
                "method.momentum is 1, and fednova divides by 1 - momentum.\nhint: method.momentum=0.9"
            )

    def round(self, x: Vec, turn: Turn) -> Tree | Talk:
        d, a = yield average(self.train, turn.cohort, send=x)
        return with_statistics_of(x + a * d, d)

    @verb
    def train(self, x: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        u, a = self.descend(self.task.loss, x, data), self.length_of_a(data)
        return (with_statistics_of((u - x) / a, u), a), keep

    def length_of_a(self, data: Data) -> Tensor:
        rho, tau = self.momentum, self.path_length(data) / self.rate(data)
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    def trained_model(self, x: Vec, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        d, a = reply
        return partial(self.task.predict, with_statistics_of(x + a * d, d))
