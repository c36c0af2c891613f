"""Local: each client trains alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.core import Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class Local(FedAvg):
    """Local: each client trains alone.

    A baseline of ours: what a federation must improve on for every client. Nothing leaves a client. Training is that
    of FedAvg (McMahan et al. 2017, Algorithm 1). A client trains in the rounds that it attends; one that never attended
    has the weights that everyone starts from.
    """

    private_steps = FedAvg.private_steps

    def start(self, turn: Turn) -> Tree | Talk:
        return ()

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort))

    def global_model(self, state: Tree) -> None:
        return None

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, sent: Tree, w: Vec, data: Data) -> tuple[Tree, Tree]:  # type: ignore[override]
        return (), self.descend(self.task.loss, w, data)

    def personal(self, view: Tree, w: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, w)
