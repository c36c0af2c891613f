"""FedAvg, and the local training that most methods share."""

from __future__ import annotations

from typing import Any

from motet.client import Data, descend
from motet.client.descent import Loss
from motet.core import Count, Epochs, Method, NotNegative, Rate, Share, Talk, Tree, Turn, average, verb
from motet.vec import Vec


class LocalSGD(Method):
    """The settings of local training by stochastic gradient descent. No method by itself: it has no round."""

    batch: Count = 16  # examples in a local step (B)
    momentum: Share = 0.0  # momentum of local steps; it starts at zero in every round
    decay: NotNegative = 0.0  # weight decay
    clip: NotNegative = 0.0  # largest length of a gradient; longer ones are cut to it; 0 = no limit

    def penalty(self) -> float:
        """The curvature that terms beside the task's loss add; safe learning rates take it into account."""
        return self.decay

    def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec:
        """The one training loop, with this method's settings unless `how` says otherwise."""
        usual = {
            "batch": self.batch,
            "momentum": self.momentum,
            "decay": self.decay,
            "clip": self.clip or None,
        }
        return descend(loss, w, data, **usual | how)


class FedAvg(LocalSGD):
    """FedAvg: all clients train the same model on their own data, and the server takes the mean.

    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    Algorithm 1. Differs from the paper: momentum, decay and clip can be set; all are off by default.
    """

    lr: Rate = 0.1  # local learning rate (eta); auto = safe for network and data, chosen when a run starts
    epochs: Epochs = 1  # local epochs in a round (E); auto = one, or more where a client has few batches

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=w))

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, w, data), keep

    def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec:
        return super().descend(loss, w, data, **{"lr": self.lr, "epochs": self.epochs} | how)
