"""Prototypes: the mean features of each class, of one client and of all.

A client sends sums and counts by class, both divided by its number of examples; so the mean over clients, by numbers of
examples, is that of all examples, and the server learns no client's own. A class that nobody has has no prototype.
Features are means over a client's examples at a network that the server knows, so `prototypes` is a measuring verb:
between organisations features are cut to a range, and sites add noise.
Knows features and classes. Does not know what prototypes are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from motet.client import Batch, Data, Task
from motet.core import Method, NotNegative, Tree, verb
from motet.parts.features import features
from motet.parts.personal_parts import refuse_without_body, refuse_without_linear_head, without_classes
from motet.vec import Vec


class MeasuredFeatures(Method):
    """A method whose clients send means of features: how large these may be, and noise of that size."""

    beyond_budget = "means of features are measured on rows and leave"

    feature_clip: NotNegative = (
        0.0  # features are cut to this size before a mean of them is sent; 0 = no limit
    )

    def clipped(self, z: Tensor) -> Tensor:
        return z.clamp(-self.feature_clip, self.feature_clip) if self.feature_clip else z

    def row_features(self, w: Vec, data: Data) -> Tensor:
        """Features of a client's rows, (rows, features), as far as they count in what it sends."""
        return self.clipped(features(self.task, self.task.weights_at_home(w, data), data.x))

    def bounded(self, most: float) -> Self:
        return replace(self, feature_clip=min(most, self.feature_clip or most))

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Tensor]) -> Tree:
        return reply + (self.feature_clip or 1.0) * draw(reply.shape).to(reply)


class Prototypes(MeasuredFeatures):
    """A method whose clients send prototypes of the classes that they hold."""

    measuring = ("prototypes",)

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "compares features that the layers before the last make")
        refuse_without_linear_head(self, "compares features that the last layer sees")

    def unfit_loss(self) -> str:
        return without_classes(self, "it has a prototype for each class")

    def own_model(self, sent: Tree, keep: Tree) -> Vec:
        """The weights whose features a client sends prototypes of."""
        raise NotImplementedError(f"{type(self).__name__} does not say whose features count")

    @verb
    def prototypes(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        z = self.row_features(self.own_model(sent, keep), data)
        sums, counts = by_class(z, data.all, self.task.outputs)
        total = data.live.sum()
        return {"sums": sums / total, "counts": counts / total}, keep

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Tensor]) -> Tree:
        counts = reply["counts"] + draw(reply["counts"].shape).to(reply["counts"])
        return {"sums": super().noised(verb, sent, reply["sums"], draw), "counts": counts.clamp(min=0)}


def blank(task: Task) -> dict[str, Tensor]:
    """Prototypes C, (classes, features), before anybody sent any; `known` says which classes have one."""
    return {"C": torch.zeros(task.outputs, task.width), "known": torch.zeros(task.outputs)}


def joined(old: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The prototypes of all clients, from the mean of their replies; a class that nobody had now keeps its old one."""
    here = found["counts"] > 0
    C = found["sums"] / torch.where(here, found["counts"], 1.0)[:, None]
    return {"C": torch.where(here[:, None], C, old["C"]), "known": torch.where(here, 1.0, old["known"])}


def by_class(z: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Sums of features by class, (classes, features), and counts, (classes,)."""
    of_class = torch.nn.functional.one_hot(batch.y, classes).to(z.dtype) * batch.live[:, None]
    return of_class.T @ z, of_class.sum(0)


def distance_to(z: Tensor, y: Tensor, given: dict[str, Tensor]) -> Tensor:
    """Mean squared difference of each example's features to the prototype of its class, (examples,); 0 without one."""
    return (z - given["C"][y]).square().mean(-1) * given["known"][y]
