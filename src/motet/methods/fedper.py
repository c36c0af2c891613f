"""FedPer and FedRep: the body of the network is shared, the head is personal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.core import Count, Talk, Tree, Turn, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


def all_head(method: FedAvg, shared: str = "nothing is shared, and this is training alone") -> list[str]:
    """What a network of one layer makes of a method that keeps the last layer at the clients."""
    name = type(method).__name__.lower()
    return [
        f"{name} keeps the last layer at the clients, and this network has one layer: {shared} (hint: net=mlp)"
    ]


class FedPer(FedAvg):
    """FedPer: the body of the network is shared, the head is personal and never sent.

    Arivazhagan et al. 2019, "Federated Learning with Personalization Layers", Algorithms 1 and 2.
    As in the paper, the body is averaged by numbers of examples.
    With `alternate`, Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated
    Learning" (FedRep), Algorithm 1: first the head is trained with the body fixed, then the body with the head
    fixed (FedRep itself takes the simple mean of bodies).
    A network of one layer is all head: then this is local training, and a run says so.
    """

    alternate: bool = False  # train first the head and then the body, as FedRep does
    head_epochs: Count = 5  # only with alternate: epochs of the head; the body has `epochs`

    def remarks(self) -> list[str]:
        return all_head(self) if not self.task.body else []

    def start(self, turn: Turn) -> Tree | Talk:
        return self.task.w0.drop(self.task.head)

    def global_model(self, body: Vec) -> Vec | None:
        return None if self.task.head else body  # heads are personal: there is no global model

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    @verb
    def train(self, body: Vec, head: Vec, data: Data) -> tuple[Tree, Tree]:
        if not self.alternate:
            w = self.descend(self.task.loss, Vec(body | head), data)
            return w.drop(self.task.head), w.pick(self.task.head)
        head = self.descend(self.with_rest, head, data, given=body, epochs=self.head_epochs)
        return self.descend(self.with_rest, body, data, given=head), head

    def with_rest(self, part: Vec, batch: Batch, rest: Vec) -> Tensor:
        return self.task.loss(Vec(rest | part), batch)

    def personal(self, body: Vec, head: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(body | head))
