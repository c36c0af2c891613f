"""FedAvg: everyone trains the same model at home, and the server takes the mean.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
Algorithm 1. Differs from the paper: clip, momentum and decay can be set; all are off by default.
"""

from __future__ import annotations

from typing import Any

from motet.client import Data, descend
from motet.client.descent import Loss
from motet.core import Count, Method, NotNegative, Positive, Share, Talk, Tree, Turn, average, verb
from motet.vec import Vec


class FedAvg(Method):
    lr: Positive = 0.1  # local learning rate (eta)
    epochs: Count = 1  # local epochs a round (E)
    batch: Count = 16  # examples in a local step (B)
    momentum: Share = 0.0  # of local steps; forgotten between rounds
    decay: NotNegative = 0.0  # weight decay
    clip: NotNegative = 0.0  # longest gradient allowed; 0 = any

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=w))

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, w, data), keep

    def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec:
        """The one training loop, with this method's settings unless `how` says otherwise."""
        usual = {
            "lr": self.lr,
            "epochs": self.epochs,
            "batch": self.batch,
            "momentum": self.momentum,
            "decay": self.decay,
            "clip": self.clip or None,
        }
        return descend(loss, w, data, **{**usual, **how})
