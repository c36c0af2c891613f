"""SCAFFOLD: FedAvg with control variates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.client.batchnorm import with_statistics_of
from motet.client.descent_rule import sgd
from motet.core import MethodUnfit, Positive, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg with control variates that correct the drift of local training.

    Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    Algorithm 1, option II. The correction c - c_i enters as a linear term of the loss. Differs from the paper:
    an epoch's last batch may be smaller; with clip, gradients are cut before they are corrected, so that c_i is
    still a mean of gradients.
    """

    private_steps = FedAvg.private_steps
    counts_cohort = True

    server_lr: Positive = 1.0  # global step size (eta_g)

    def check(self) -> None:
        super().check()
        if self.optimiser != "sgd":
            raise MethodUnfit(
                f"method.optimiser is {self.optimiser}, and scaffold reads gradients off the way that sgd went.\n"
                "hint: method.optimiser=sgd"
            )
        if self.momentum:
            raise MethodUnfit(
                f"method.momentum is {self.momentum:g}, and scaffold reads gradients off the way that was gone, which "
                "with momentum is longer than they are.\nhint: method.momentum=0"
            )

    def start(self, turn: Turn) -> Tree | Talk:
        return {"x": self.task.w0, "c": self.task.w0.zeros()}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        even = dict.fromkeys(turn.cohort, 1.0)
        dy, dc = yield average(self.train, turn.cohort, send=s, weights=even)
        share = len(turn.cohort) / len(turn.clients)  # |S| / N
        x = with_statistics_of(s["x"] + self.server_lr * dy, s["x"] + dy)
        return {"x": x, "c": s["c"] + share * dc}

    def global_model(self, s: Tree) -> Vec:
        return s["x"]

    def download(self, s: Tree, client: str) -> Tree:
        return s["x"]

    def join(self, data: Data) -> Tree:
        return self.task.w0.zeros()

    @verb
    def train(self, s: Tree, ci: Vec, data: Data) -> tuple[Tree, Tree]:
        x, c = s["x"], s["c"]
        how = (self.uncorrected, self.corrected_step) if self.clip else (self.corrected, sgd)
        y = self.descend(how[0], x, data, given=c - ci, step=how[1])
        fresh = ci - c + (x - y) / self.path_length(data)  # K eta_l of the paper
        return (y - x, fresh - ci), fresh

    def corrected(self, y: Vec, batch: Batch, drift: Vec) -> Tensor:
        return self.task.loss(y, batch) + drift.dot(y)

    def uncorrected(self, y: Vec, batch: Batch, drift: Vec) -> Tensor:
        return self.task.loss(y, batch)

    def corrected_step(self, y: Vec, g: Vec, drift: Vec, lr: Tensor) -> Vec:
        return y - lr * (g + drift)

    def trained_model(self, s: Tree, reply: Tree, ci: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, s["x"] + reply[0])
