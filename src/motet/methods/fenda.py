"""FENDA-FL: each client has a body of its own beside the shared one, and its head sees the features of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.core import Talk, Tree, Turn, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import refuse_without_body
from motet.parts.several_models import other_start
from motet.vec import Vec


class FENDA(FedAvg):
    """FENDA-FL: each client has a body of its own beside the shared one, and its own head sees the features of both.

    Tavakoli et al. 2024, "FENDA-FL: Personalized Federated Learning on Heterogeneous Clinical Datasets", section 3,
    after Kim et al. 2020 (FENDA). Only the shared body is sent; all parts are trained together.
    A linear head of both bodies' features is the sum of two heads, one for each body: so a client's scores are those of
    a model with the shared body plus those of its own model, and each half of the head starts as the network's head.
    Differs from the paper: both bodies are of one kind, and the client's own starts with weights of other signs.
    """

    private_steps = FedAvg.private_steps

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "has a shared body and one of each client's own")

    def start(self, turn: Turn) -> Tree | Talk:
        return self.task.w0.drop(self.task.head)

    def global_model(self, body: Vec) -> None:
        return None

    def join(self, data: Data) -> Tree:
        return {"head": self.task.w0.pick(self.task.head), "own": other_start(self.task.w0, 1)}

    @verb
    def train(self, body: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        three = self.descend(
            self.loss_of_both, Vec.join(shared=Vec(body | keep["head"]), own=keep["own"]), data
        )
        w, own = three.split("shared", "own")
        return w.drop(self.task.head), {"head": w.pick(self.task.head), "own": own}

    def loss_of_both(self, three: Vec, batch: Batch) -> Tensor:
        shared, own = three.split("shared", "own")
        scores = self.both(shared, own, batch.x)
        return batch.mean(self.task.per_example_loss(scores, batch.y, batch.live))

    def both(self, shared: Vec, own: Vec, x: Tensor) -> Tensor:
        return self.task.predict(shared, x) + self.task.predict(own, x)

    def personal(self, body: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.both, Vec(body | keep["head"]), keep["own"])
