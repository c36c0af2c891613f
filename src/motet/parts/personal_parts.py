"""What of a model is a client's own: one part of a network, or a whole model.

`PersonalPart` goes before FedAvg. A method says in `stays` which weights never leave; both parts are trained together
unless it trains otherwise. `OwnModel` and `CollectedModels` are for clients that have a model beside the shared ones;
`own_or` is what a client uses that never took part and so has none.
Knows names of weights. Does not know why a part is personal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from motet.client import Data
from motet.client.descent_rule import Loss
from motet.core import Method, MethodUnfit, Talk, Tree, Turn, verb
from motet.parts.several_models import mean_of
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


def own_or(task: Any, own: Vec, shared: Vec) -> Vec:
    """A client's own model, or a part of one; the shared one while its own is the initial one, as before its first
    round."""
    return own.where((own - task.w0.pick(own)).sq() > 0, shared)


class OwnModel(Method):
    """A method whose clients keep a whole model of their own and use it; before its first round, a client uses the
    model that it downloads."""

    def join(self, data: Data) -> Tree:
        return self.task.w0

    def personal(self, view: Vec, own: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, own_or(self.task, own, view))


class CollectedModels(OwnModel):
    """And whose server collects these models: its state has the last one of each client, and no global one. Clients
    that never took part use the mean of the last round's."""

    def start(self, turn: Turn) -> Tree | Talk:
        return {"models": {}, "mean": self.task.w0}

    def with_models(self, s: Tree, replies: Mapping[str, Vec]) -> Tree:
        """The state after a round in which these models came."""
        mean = mean_of([replies[c] for c in sorted(replies)]) if replies else s["mean"]
        return {"models": s["models"] | replies, "mean": mean}

    def global_model(self, state: Tree) -> None:
        return None

    def download(self, state: Tree, client: str) -> Tree:
        return state["mean"]


# ---- networks that have no such part ----


def all_head(method: Method, shared: str = "nothing is shared, and this is training alone") -> list[str]:
    """What a network of one layer makes of a method that keeps the last layer at the clients; nothing for others."""
    name = type(method).__name__.lower()
    what, hint = _frozen_body(method) or ("this network has one layer", "net=mlp")
    text = f"{name} keeps the last layer at the clients, and {what}: {shared} (hint: {hint})"
    return [] if method.task.body else [text]


def _frozen_body(method: Method) -> tuple[str, str] | None:
    """What to say of a network whose other layers are frozen, and what would help; None for other networks."""
    if all(p.requires_grad for p in method.task.net.parameters()):
        return None
    more = "train more of it, as net.train=lora or all does for hf:FOLDER"
    return "nothing but the head of this network is trained", more


def refuse_without_body(method: Method, why: str) -> None:
    """Raise MethodUnfit for a network of one layer; `why` says what the layers before the last are for."""
    if not method.task.body:
        one_layer = "this network is all head", "use a network with more than one layer, say net=mlp"
        what, hint = _frozen_body(method) or one_layer
        raise MethodUnfit(f"{type(method).__name__.lower()} {why}, and {what}.\nhint: {hint}")


def refuse_without_linear_head(method: Method, why: str) -> None:
    """Raise MethodUnfit for a network whose last layer is not linear, or sees more than one row of features for an
    example; `why` says what the method does with it."""
    task, name = method.task, type(method).__name__.lower()
    linear = isinstance(task.net.get_submodule(task.head[0].rpartition(".")[0]), nn.Linear)
    if not linear or not any(task.w0[k].ndim == 2 for k in task.head):
        raise MethodUnfit(
            f"{name} {why}, and the last layer here, with {', '.join(task.head)}, is not linear, or its weights are "
            "frozen or also another layer's.\nhint: end the network with torch.nn.Linear(features, outputs)"
        )
    if not getattr(task.net, "head_sees_rows", True):
        raise MethodUnfit(
            f"{name} {why}, and the last layer here, with {', '.join(task.head)}, does not see one row of features for "
            "each example.\nhint: take the mean over positions before the last layer, not behind it"
        )


def refuse_what_follows_head(method: Method, why: str) -> None:
    """The same, and for a network that computes something behind its last layer: `Task.top` does not know it."""
    refuse_without_linear_head(method, why)
    if not getattr(method.task.net, "ends_in_head", True):
        raise MethodUnfit(
            f"{type(method).__name__.lower()} {why}, and this network returns something else than what its last layer, "
            f"with {', '.join(method.task.head)}, gives.\nhint: end the network with "
            "torch.nn.Linear(features, outputs), and return what it gives as it is"
        )


def without_classes(method: Method, why: str) -> str:
    """For `unfit_loss` of a method that is about classes: why it is none for other targets; "" for classes."""
    if method.task.kind == "classes":
        return ""
    kind = "times of survival" if method.task.kind == "survival" else "numbers"
    return f"{why}, and the targets are {kind}.\nhint: a method without classes, say method=ditto"
