"""Per-FedAvg: the shared model is trained to be good after a client has adapted it by a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torch.func import grad

from motet.client import Batch, Data
from motet.client.dropout import drawn_alike
from motet.core import Count, NotNegative, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec

InnerRate = Annotated[float, "> 0", "auto", 0.3]  # at a whole safe rate, adapted models swing


class PerFedAvg(FedAvg):
    """Per-FedAvg: the shared model is trained to be good after each client has adapted it by a step of its own.

    Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
    Approach", Algorithm 1: w <- w - beta (I - alpha H(w)) grad f(w - alpha grad f(w, D), D'). H times a
    vector is a difference of two gradients (HF, the default), or H is left out (FO, delta 0).
    Differs from the paper: H is measured on D; D and D' have `batch` rows each; replies are weighted by numbers of
    examples; a client adapts the model by an epoch of steps before it uses it, where the paper takes one.
    """

    beyond_budget = "rows train a model anew at every score"

    strength = "inner_lr"
    inner_lr: InnerRate = (
        0.03  # step of a client that adapts the model (alpha; lr is beta); auto: 0.3 of a safe lr
    )
    delta: NotNegative = 0.001  # length of the difference in place of the Hessian (HF); 0 = first-order (FO)
    tune: Count = 1  # epochs in which a client adapts the model before it uses it
    tune_steps: Annotated[int, ">= 0"] = 0  # or so many minibatches, in the paper one; 0 = epochs count

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.after_adapting, w, data, batch=2 * self.batch), keep

    def after_adapting(self, w: Vec, batch: Batch) -> Tensor:
        """A linear function of w with the gradient that the paper steps along."""
        slope, at = grad(self.task.loss), w.map(lambda a, _: a.detach())
        D, D_ = halves(batch)
        g = slope(at - self.inner_lr * slope(at, D), D_)
        if self.delta:
            ends = at + self.delta * g, at - self.delta * g
            ahead, behind = drawn_alike(lambda u: slope(u, D), *ends)
            g = g - self.inner_lr / (2 * self.delta) * (ahead - behind)
        return g.map(lambda a, _: a.detach()).dot(w)

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        length = {"steps": self.tune_steps} if self.tune_steps else {"epochs": self.tune}
        adapted = self.descend(self.task.loss, w, data, lr=self.inner_lr, **length)
        return partial(self.task.predict, adapted)

    def trained_model(self, sent: Vec, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, w)

    def epochs_at_evaluation(self) -> int:
        return 0 if self.tune_steps else self.tune

    def parts_trained(self, n: int) -> tuple[int, ...]:
        return (n // 2,)  # rows of D', along whose gradients the steps go


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Rows at even and at odd places; where there is no real row at an odd place, all rows take their part."""
    odd = batch.live * (torch.arange(len(batch)) % 2)
    second = torch.where(odd.sum() > 0, odd, batch.live)
    return Batch(batch.x, batch.y, batch.live - odd), Batch(batch.x, batch.y, second)
