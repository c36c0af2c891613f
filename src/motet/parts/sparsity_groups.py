"""Groups by sparsity vectors around a method: FedPerC's grouping, and the method's own rounds in each group.

`SparsityGroups` goes before a method whose server keeps one averaged model, and `Grouping` behind it. First FedAvg
trains a whole model W_g, as in FedPerC; then clients are grouped, and each group starts with the weights of W_g that
the method shares. What clients keep and have not trained yet, a head or a model of their own, starts from W_g too.
Knows rounds and groups. Does not know what clients train or keep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Client, Method, MethodUnfit, Talk, Tree, Turn, average, verb
from motet.parts.grouping import Grouping
from motet.parts.groups_around import (
    FITTING,
    in_groups,
    loss_of,
    refuse_more_verbs,
    refuse_other_rounds,
    refuse_same_settings,
    shared_model,
)
from motet.vec import Vec


class SparsityGroups(Grouping):
    """The parts of a method that differ where its clients are grouped by sparsity vectors. `super()` is the method,
    which comes before Grouping, and Grouping for what the method itself does not say."""

    made_of: ClassVar[type[Method]]  # the method inside

    def check(self) -> None:
        super().check()
        if self.choose_k == "trials":
            raise MethodUnfit(
                "method.choose_k is trials, and trials train whole models as fedperc does, not as the method inside.\n"
                "hint: method.choose_k=silhouette, or method.k"
            )

    @cached_property
    def names(self) -> frozenset[str]:
        """The weights that a group shares."""
        shared = shared_model(self, self.made_of.start(self, Turn(-1, (), (), 0)))
        if not set(shared) <= set(self.task.w0):
            raise MethodUnfit(
                f"{type(self).__name__}: groups start from a model that FedAvg trained, and this method's clients "
                f"share weights that are none of the network's.\n{FITTING}"
            )
        return frozenset(shared)

    def start(self, turn: Turn) -> Tree | Talk:
        return Grouping.start(self, turn) if self.names else {}  # else it was refused

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        if self.is_warm_up(s, turn):
            s = s | {"W_g": (yield average(self.train_whole, turn.cohort, send=s["W_g"]))}
            return (yield from self.update_extractor(s, turn))
        s = yield from self.admit(s, turn)
        s = yield from self.regroup(s, turn)
        return s | {"models": (yield from in_groups(super().round, s["models"], self.present(s, turn), turn))}

    def group_model(self, W_g: Vec) -> Vec:
        return W_g.pick(self.names)

    def sparsity_request(self, s: Tree) -> dict[str, Vec]:
        return Grouping.sparsity_request(self, s) | {"W_g": s["W_g"]}

    # ---- what clients do ----

    @verb
    def train_whole(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, w, data), keep

    @verb
    def sparsity(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.sparsity_vector(sent["extractor"], data), self.begun(keep, sent["W_g"])

    @verb
    def best_group(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        own = [super(SparsityGroups, self).personal(m, keep, data) for m in sent["models"]]
        return self.least(torch.stack([loss_of(self.task, f, data.val) for f in own]), sent["own"]), keep

    def begun(self, keep: Tree, W_g: Vec) -> Tree:
        """What a client keeps, where weights that are still the initial ones are those of W_g."""
        if isinstance(keep, Vec) and keep and set(keep) <= set(self.task.w0):
            first = self.task.w0.pick(keep)
            return keep.where((keep - first).sq() > 0, W_g.pick(keep))
        return {k: self.begun(v, W_g) for k, v in keep.items()} if type(keep) is dict else keep

    # ---- what the method sees of the state ----

    def global_model(self, s: Tree) -> Vec:
        return Grouping.global_model(self, s)

    def download(self, s: Tree, client: Client) -> Tree:
        group = s["groups"].get(client)
        model = self.group_model(s["W_g"]) if group is None else s["models"][group]
        return {"shared": self.made_of.download(self, model, client), "W_g": s["W_g"]}

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return Grouping.after_visit(self, s, after)

    def metrics(self, s: Tree) -> dict[str, float]:
        return {}

    def summary(self, s: Tree) -> dict[str, Any]:
        return Grouping.summary(self, s)

    def log(self, before: Tree, after: Tree) -> str:
        return ""

    def personal(self, view: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        if type(view) is not dict:  # a model that was just trained
            return super().personal(view, keep, data)
        return super().personal(view["shared"], self.begun(keep, view["W_g"]), data)

    @classmethod
    def made(cls, base: type[Method], plain: type[Method], name: str) -> type[Method]:
        """The class of groups around a method."""
        refuse_more_verbs(base, plain, "groups need clients that train as FedAvg's do and do nothing else")
        refuse_same_settings(base, Grouping, plain, name)
        refuse_other_rounds(base, plain, ("download", "after_visit", "epochs_at_evaluation"))
        said = {
            "__doc__": f"{base.__doc__}\n    In groups by sparsity vectors ({name}).",
            "__module__": base.__module__,
            "strength": base.strength,
            "made_of": base,
        }
        return type(f"{base.__name__}{name}", (SparsityGroups, base, Grouping), said)
