"""Fed-ROD: a shared body, a generic head for balanced classes, and a personal head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import own_or, refuse_what_follows_head
from motet.vec import Vec

_ABSENT = -1e9  # the logarithm of no example, kept finite


class FedROD(FedAvg):
    """Fed-ROD: a shared body, a generic head that is trained as if classes were balanced, and a personal head on top.

    Chen & Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image Classification",
    the linear variant. The generic head g and the body f learn from cross-entropy with log n_c added to the
    scores (balanced softmax). The personal head h_i learns the rest, with f and g fixed. The
    server averages f and g; h_i starts as a copy of g's start and is never sent.
    A network of one layer has no body: the heads then see the examples themselves. Targets that are
    numbers have no classes to balance.
    Differs from the paper: both heads have one learning rate, and classes that a client lacks get a large
    negative number in place of log 0. A client that never took part uses the generic head alone.
    """

    beyond_budget = "numbers of rows of each class are in the loss"

    def check(self) -> None:
        super().check()
        refuse_what_follows_head(self, "adds a second head to the last layer")

    def unfit_loss(self) -> str:
        loss = self.task.criterion
        if self.task.kind == "classes" and (loss.weights or loss.own):
            return "its generic head balances classes itself.\nhint: net.loss=cross_entropy net.class_weights=none"
        return ""

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    @verb
    def train(self, w: Vec, h: Vec, data: Data) -> tuple[Tree, Tree]:
        both = self.descend(self.two_losses, Vec.join(w=w, h=h), data, given=self.prior(data))
        w, h = both.split("w", "h")
        return w, h

    def two_losses(self, both: Vec, batch: Batch, prior: Tensor) -> Tensor:
        w, h = both.split("w", "h")
        generic, z = self.task.predict_from(w, batch.x)
        personal = generic.detach() + self.task.top(h, z.detach())
        first, second = (
            self.task.per_example_loss(s, batch.y, batch.live) for s in (generic + prior, personal)
        )
        return batch.mean(first + second)

    def prior(self, data: Data) -> Tensor:
        """log n_c of this client."""
        if self.task.kind != "classes":
            return torch.zeros(())
        count = torch.zeros(self.task.outputs).scatter_add(0, data.y, data.all.live)
        return torch.where(count > 0, torch.log(torch.where(count > 0, count, 1.0)), _ABSENT)

    def personal(self, w: Vec, h: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.both_heads, w, own_or(self.task, h, 0 * h))

    def both_heads(self, w: Vec, h: Vec, x: Tensor) -> Tensor:
        generic, z = self.task.predict_from(w, x)
        return generic + self.task.top(h, z)
