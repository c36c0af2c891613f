"""FedBABU: only the body is trained together; the head stays as it was initialised until clients tune the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.core import Count, Talk, Tree, Turn, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import refuse_without_body
from motet.vec import Vec


class FedBABU(FedAvg):
    """FedBABU: all clients train the body under one fixed random head, and each tunes the whole model for its own use.

    Oh et al. 2022, "FedBABU: Toward Enhanced Representation for Federated Image Classification", Algorithm 1. The
    head never changes in training, so that it is not sent; personal models are tuned for some epochs, head and body.
    Differs from the paper: the head's initial weights are the network's usual ones, not orthogonal ones.
    """

    beyond_budget = "rows train a model anew at every score"

    strength = "tune"
    tune: Count = 10  # epochs in which a client tunes the whole model before it uses it (tau_f; the paper: 5)

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "trains the body of a network under a fixed head")

    def start(self, turn: Turn) -> Tree | Talk:
        return self.task.w0.pick(self.task.body)

    def global_model(self, body: Vec) -> Vec:
        return self.whole(body)

    def whole(self, body: Vec) -> Vec:
        return Vec(body | self.task.w0.pick(self.task.head))

    @verb
    def train(self, body: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        head = self.task.w0.pick(self.task.head)
        return self.descend(self.task.loss_of_part, body, data, given=head), keep

    def personal(self, body: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        w = self.descend(self.task.loss, self.whole(body), data, epochs=self.tune, lr=self.lr)
        return partial(self.task.predict, w)

    def trained_model(self, sent: Vec, body: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, self.whole(body))

    def epochs_at_evaluation(self) -> int:
        return self.tune
