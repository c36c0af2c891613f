"""FedALA: before training, each client learns how much of the global model to take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.client.batchnorm import statistics
from motet.core import Count, Positive, Share, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import own_or
from motet.vec import Vec


class FedALA(FedAvg):
    """FedALA: before training, each client learns for every weight how much of the global model to take.

    Zhang et al. 2023, "FedALA: Adaptive Local Aggregation for Personalized Federated Learning",
    Algorithm 1. The top layers start from local + (global - local) * A, with A in [0, 1] learned on a share of
    the client's examples; the other layers start from the global model.
    Differs from the paper: A is first learned for a fixed number of epochs, where the paper goes on until its
    loss converges. A client's first round has nothing to mix and skips this, as in the paper.
    """

    beyond_budget = "weights of a mixture are learned on a draw of the rows"

    strength = "mix_lr"
    mix_lr: Positive = 1.0  # learning rate of A (eta)
    mix_share: Share = 0.8  # share of the client's examples on which A is learned (s)
    mix_first: Count = 10  # epochs in which A is learned for the first time; later it is one epoch a round
    tensors: Count = 2  # last parameter tensors that are mixed; 2 = weight and bias of the last layer (p)

    def join(self, data: Data) -> Tree:
        top = self.task.w0.pick(self.top())
        return {"own": self.task.w0, "a": top.zeros() + 1.0, "rounds": torch.tensor(0)}

    def top(self) -> list[str]:
        still = statistics(self.task.w0)
        in_order = (*self.task.body, *self.task.head)  # the head may be defined before the body
        return [k for k in in_order if k not in still][-self.tensors :]

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        own, a, rounds = keep["own"].pick(self.top()), keep["a"], keep["rounds"]
        order, some = data.order(), torch.ceil(self.mix_share * data.n).long()
        part = data.some(order, some)
        epochs = torch.where(rounds == 0, 0, torch.where(rounds == 1, self.mix_first, 1))
        how = {"optimiser": "sgd", "decay": 0.0, "momentum": 0.0, "clip": None, "step": self.clamp}
        a = self.descend(self.mixed_loss, a, part, given=(w, own), lr=self.mix_lr, epochs=epochs, **how)
        u = self.descend(self.task.loss, self.mix(a, w, own), data)
        return u, {"own": u, "a": a, "rounds": rounds + 1}

    def mix(self, a: Vec, w: Vec, own: Vec) -> Vec:
        return Vec(w | (own + (w.pick(self.top()) - own) * a))

    def mixed_loss(self, a: Vec, batch: Batch, given: tuple[Vec, Vec]) -> Tensor:
        return self.task.loss(self.mix(a, *given), batch)

    def clamp(self, a: Vec, g: Vec, given: Tree, lr: Tensor) -> Vec:
        return (a - lr * g).map(lambda v, _: v.clamp(0, 1))

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, own_or(self.task, keep["own"], w))

    def parts_trained(self, n: int) -> tuple[int, ...]:
        return n, math.ceil(self.mix_share * n)  # A is learned on some of the examples
