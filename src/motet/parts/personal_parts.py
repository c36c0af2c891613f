"""What of a model is a client's own: one part of a network, or a whole model.

`PersonalPart` goes before FedAvg. A method says in `stays` which weights never leave; both parts are trained together
unless it trains otherwise. `OwnModel` and `CollectedModels` are for clients that have a model beside the shared ones.
Knows names of weights. Does not know why a part is personal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from motet.client import Data
from motet.client.descent_rule import Loss
from motet.core import Method, MethodUnfit, Talk, Tree, Turn, verb
from motet.vec import Vec


class PersonalPart(Method):
    """A method whose clients keep some of the weights and send the others."""

    if TYPE_CHECKING:  # this is FedAvg's

        def descend(self, loss: Loss, w: Vec, data: Data, **how: Any) -> Vec: ...

    def stays(self) -> Sequence[str]:
        """The names of the weights that stay with a client."""
        raise NotImplementedError(f"{type(self).__name__} does not say what stays")

    def start(self, turn: Turn) -> Tree | Talk:
        return self.task.w0.drop(self.stays())

    def global_model(self, shared: Vec) -> Vec | None:
        return None if self.stays() else shared  # where a part is personal, there is no global model

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.stays())

    @verb
    def train(self, shared: Vec, own: Vec, data: Data) -> tuple[Tree, Tree]:
        w = self.descend(self.task.loss, Vec(shared | own), data)
        return w.drop(self.stays()), w.pick(self.stays())

    def personal(self, shared: Vec, own: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(shared | own))


class OwnModel(Method):
    """A method whose clients keep a whole model of their own and use it."""

    def join(self, data: Data) -> Tree:
        return self.task.w0

    def personal(self, view: Tree, own: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, own)


class CollectedModels(OwnModel):
    """And whose server collects these models: its state has the last one of each client, and no global one."""

    def start(self, turn: Turn) -> Tree | Talk:
        return {"models": {}}

    def global_model(self, state: Tree) -> None:
        return None

    def download(self, state: Tree, client: str) -> Tree:
        return ()  # a client uses the model that it trained


# ---- networks that have no such part ----


def all_head(method: Method, shared: str = "nothing is shared, and this is training alone") -> list[str]:
    """What a network of one layer makes of a method that keeps the last layer at the clients; nothing for others."""
    name = type(method).__name__.lower()
    text = f"{name} keeps the last layer at the clients, and this network has one layer: {shared} (hint: net=mlp)"
    return [] if method.task.body else [text]


def refuse_without_body(method: Method, why: str) -> None:
    """Raise MethodUnfit for a network of one layer; `why` says what the layers before the last are for."""
    if not method.task.body:
        raise MethodUnfit(
            f"{type(method).__name__.lower()} {why}, and this network is all head.\n"
            "hint: use a network with more than one layer, say net=mlp"
        )


def without_classes(method: Method, why: str) -> str:
    """For `unfit_loss` of a method that is about classes: why it is none for other targets; "" for classes."""
    if method.task.kind == "classes":
        return ""
    kind = "times of survival" if method.task.kind == "survival" else "numbers"
    return f"{why}, and the targets are {kind}.\nhint: a method without classes, say method=ditto"
