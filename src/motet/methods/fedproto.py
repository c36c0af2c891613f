"""FedProto: clients share the mean features of each class, and no weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.prototypes import Prototypes, blank, distance_to, joined
from motet.vec import Vec

_UNKNOWN = 10.0  # a class without a prototype scores so much less than the least likely one that has one


class FedProto(Prototypes, FedAvg):
    """FedProto: clients share prototypes, the mean features of each class, and train models of their own near them.

    Tan et al. 2022, "FedProto: Federated Prototype Learning across Heterogeneous Clients", Algorithm 1: each client
    trains its model by the task's loss and lam times the squared distance of features to the prototype C of their
    class, and then sends its own prototypes. A client predicts the class of the nearest prototype.
    Differs from the paper: the distance is that of single examples and a mean over features, as in the authors' code;
    C is the mean over all examples of a class (equation 6 divides once more by the number of clients); all clients have
    the same network. lam 0 is local training.
    """

    strength = "lam"
    lam: NotNegative = 1.0  # weight of the distance to prototypes (lambda)

    def start(self, turn: Turn) -> Tree | Talk:
        return blank(self.task)

    def round(self, C: Tree, turn: Turn) -> Tree | Talk:
        yield average(self.train, turn.cohort, send=C)
        return joined(C, (yield average(self.prototypes, turn.cohort)))

    def global_model(self, C: Tree) -> None:
        return None

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, C: Tree, own: Vec, data: Data) -> tuple[Tree, Tree]:
        return (), self.descend(self.near, own, data, given=C)

    def near(self, w: Vec, batch: Batch, C: Tree) -> Tensor:
        scores, z = self.task.predict_from(w, batch.x)
        loss = self.task.per_example_loss(scores, batch.y, batch.live)
        return batch.mean(loss + self.lam * distance_to(z, batch.y, C))

    def own_model(self, sent: Tree, w: Vec) -> Vec:
        return w

    def personal(self, C: Tree, w: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.nearest, w, C)

    def nearest(self, w: Vec, C: Tree, x: Tensor) -> Tensor:
        """Minus squared distances to prototypes; the head's scores before there are any."""
        scores, z = self.task.predict_from(w, x)
        far, known = (z[:, None] - C["C"]).square().sum(-1), C["known"] > 0
        last = torch.where(known, far, -torch.inf).amax(-1, keepdim=True) + _UNKNOWN
        return torch.where(known.any(), -torch.where(known, far, last), scores)

    def trained_model(self, C: Tree, reply: Tree, w: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.nearest, w, C)
