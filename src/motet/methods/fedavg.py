"""FedAvg, and the local training that most methods share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from motet.client import Data, descend
from motet.client.descent_rule import Loss
from motet.client.optimisers import OptimiserName
from motet.core import (
    Count,
    Epochs,
    Method,
    MethodUnfit,
    NotNegative,
    Rate,
    Share,
    Talk,
    Tree,
    Turn,
    average,
    verb,
)
from motet.parts.rate_schedules import RateSchedule
from motet.vec import Vec


class LocalSGD(Method):
    """The settings of local training by stochastic gradient descent. No method by itself: it has no round."""

    batch: Count = 16  # examples in a local step (B)
    optimiser: OptimiserName = "sgd"  # of local steps, as in torch; its state starts at zero in every round
    momentum: Share = 0.0  # sgd only: momentum of local steps
    decay: NotNegative = 0.0  # weight decay; adamw: decoupled from the gradient
    clip: NotNegative = 0.0  # largest length of a gradient; longer ones are cut to it; 0 = no limit

    def check(self) -> None:
        if self.optimiser != "sgd" and self.momentum:
            raise MethodUnfit(
                f"method.momentum is {self.momentum:g}, and {self.optimiser} has a momentum of its own, 0.9.\n"
                "hint: method.momentum=0, or method.optimiser=sgd"
            )

    def penalty(self) -> float:
        """The curvature that terms beside the task's loss add; safe learning rates take it into account, and sites
        that a step of what leaves forgets those before it."""
        return 0.0 if self.optimiser == "adamw" else self.decay

    def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec:
        """The one training loop, with this method's settings unless `how` says otherwise."""
        usual = {
            "batch": self.batch,
            "optimiser": self.optimiser,
            "momentum": self.momentum,
            "decay": self.decay,
            "clip": self.clip or None,
        }
        return (
            descend(loss, w, data, **usual | how) if w else w
        )  # the body of a network of one layer is empty


class FedAvg(LocalSGD):
    """FedAvg: all clients train the same model on their own data, and the server takes the mean.

    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    Algorithm 1. Differs from the paper: optimiser, momentum, decay and clip can be set, and steps may be counted
    instead of epochs; all are off by default.
    """

    lr: Rate = 0.1  # local learning rate (eta); auto = safe for network and data, chosen when a run starts
    epochs: Epochs = 1  # local epochs in a round (E); auto = one, or more where a client has few batches
    schedule: RateSchedule = (
        RateSchedule()
    )  # of lr over rounds; not of training at evaluation, nor at newcomers
    steps: Annotated[int, ">= 0"] = (
        0  # local batches in a round, through as many epochs as it takes; 0 = epochs count
    )

    def check(self) -> None:
        super().check()
        self.schedule.check()
        if self.steps and self.epochs not in (1, type(self).epochs):
            raise MethodUnfit(
                f"method.epochs is {self.epochs} and method.steps is {self.steps}; where steps count, epochs do not.\n"
                f"hint: method.steps=0, or leave method.epochs out"
            )

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=w))

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, w, data), keep

    def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec:
        """As above; a number of epochs that `how` gives is meant as it stands, whatever `steps` is."""
        length = {} if "epochs" in how else {"epochs": self.epochs, "steps": self.steps}
        return super().descend(loss, w, data, **{"lr": self.rate(data)} | length | how)

    def rate(self, data: Data) -> float | Tensor:
        """The local learning rate in this round."""
        return self.lr * self.schedule.factor_at(data.round) if self.schedule.changes else self.lr

    def for_visit(self) -> Self:
        return replace(self, schedule=RateSchedule())

    def steps_taken(self, n: Tensor) -> Tensor:
        """How many steps a client with n examples takes in a round."""
        whole = self.epochs * torch.ceil(n / self.batch)
        return torch.full_like(whole, self.steps) if self.steps else whole

    def private_steps(self, n: int) -> int:
        return int(self.steps_taken(torch.tensor(n)))

    def path_length(self, data: Data) -> Tensor:
        """Steps of a client in this round, times their rate."""
        return self.steps_taken(data.n) * self.rate(data)

    def rows_trained(self, n: int) -> int:
        rows = super().rows_trained(n)
        return min(rows, self.steps * self.batch) if self.steps else rows
