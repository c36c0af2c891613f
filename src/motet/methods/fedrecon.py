"""FedRecon: clients rebuild the head of the network whenever they need it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.core import Count, Positive, Rate, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import refuse_without_body
from motet.parts.step_lengths import stepped
from motet.vec import Vec


class FedRecon(FedAvg):
    """FedRecon: each client rebuilds the head of the network from its start whenever it needs it, and keeps nothing.

    Singhal et al. 2021, "Federated Reconstruction: Partially Local Federated Learning", Algorithm 1.
    One half of a client's examples (support) rebuilds the head with the body fixed, the other half
    (query) trains the body with the head fixed. To predict, the head is rebuilt on all examples.
    Differs from the paper: examples are halved one by one, not by batches.
    """

    beyond_budget = "rows are shared between two trainings, and train anew at every score"

    recon_lr: Rate = 0.5  # learning rate of the head while it is rebuilt; auto = as lr
    recon_epochs: Count = 10  # epochs of the head over the support half
    server_lr: Positive = 1.0  # step of the server towards the mean of the replies (eta_s); 1 = the mean

    def start(self, turn: Turn) -> Tree | Talk:
        refuse_without_body(self, "shares the body of a network and rebuilds its head")
        return self.task.w0.drop(self.task.head)

    def round(self, body: Vec, turn: Turn) -> Tree | Talk:
        mean = yield average(self.train, turn.cohort, send=body)
        return stepped(body, mean, self.server_lr)

    def global_model(self, body: Vec) -> None:
        return None

    @verb
    def train(self, body: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        order, n = data.order(), data.n
        support, query = data.some(order[0::2], (n + 1) // 2), data.some(order[1::2], n // 2)
        head = self.rebuilt(body, support)
        return self.descend(self.task.loss_of_part, body, query, given=head), keep

    def rebuilt(self, body: Vec, data: Data) -> Vec:
        blank = self.task.w0.pick(self.task.head)
        how = {"lr": self.recon_lr, "epochs": self.recon_epochs}
        return self.descend(self.task.loss_of_part, blank, data, given=body, **how)

    def personal(self, body: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(body | self.rebuilt(body, data)))

    def parts_trained(self, n: int) -> tuple[int, ...]:
        return (n // 2,)

    def epochs_at_evaluation(self) -> int:
        return self.recon_epochs
