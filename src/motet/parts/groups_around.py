"""Groups around a method: several shared models instead of one, each trained by the method among clients of its group.

`ChosenGroups` goes before a method whose server keeps one averaged model. Each client says which of the models suits
it best, with what it keeps itself (a personal head, say), and the method's own round is played in every group.
Knows rounds and groups. Does not know what clients train or keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from motet.client import Batch, Data, Task
from motet.client.task import predicted
from motet.core import (
    Client,
    Count,
    Method,
    MethodUnfit,
    NoReply,
    Talk,
    Tree,
    Turn,
    collect,
    is_solo,
    is_verb,
    verb,
)
from motet.parts.several_models import least_of, several_starts
from motet.vec import Vec

FITTING = (
    "hint: around a method whose server takes the mean of one model, say method=fedper+ifca or fedprox+cfl"
)


def shared_model(method: Method, state: Any) -> Vec:
    """The one model that a method's server starts with; MethodUnfit where it keeps something else."""
    if inspect.isgenerator(state) or not isinstance(state, Vec) or not state:
        raise MethodUnfit(
            f"{type(method).__name__}: groups need a server that keeps one averaged model, and this one keeps "
            f"something else.\n{FITTING}"
        )
    return state


def refuse_other_rounds(base: type[Method], plain: type[Method], parts: tuple[str, ...]) -> None:
    """Refuse a method that has parts of its own which groups would replace."""
    if others := [k for k in parts if getattr(base, k) is not getattr(plain, k)]:
        raise MethodUnfit(
            f"{base.__name__} has {', '.join(others)} of its own, which groups have in that place too.\n{FITTING}"
        )


def refuse_more_verbs(base: type[Method], plain: type[Method], why: str, hint: str = FITTING) -> None:
    """Refuse a method whose clients do not train as those of `plain` do, or do something besides."""
    verbs = {name for name in dir(base) if is_verb(getattr(base, name))}
    if not issubclass(base, plain) or verbs != {"train"}:
        raise MethodUnfit(f"{base.__name__}: {why}.\n{hint}")


def refuse_same_settings(
    base: type[Method], part: type[Method], plain: type[Method], name: str, hint: str = FITTING
) -> None:
    """Refuse a method that has settings of its own with the names of a part's."""
    own = {f.name for f in fields(part)} - {f.name for f in fields(plain)}
    if both := sorted(own & {f.name for f in fields(base)}):
        raise MethodUnfit(f"{base.__name__} and {name} both have {', '.join(both)}.\n{hint}")


def in_groups(
    play: Callable[[Vec, Turn], Talk], models: Sequence[Vec], groups: Mapping[int, list[Client]], turn: Turn
) -> Talk:
    """A method's round with the members of each group; a group of which nobody answers keeps its model."""
    models = list(models)
    for g, members in groups.items():
        try:
            models[g] = yield from play(models[g], replace(turn, cohort=members))
        except NoReply:
            continue
    return models


def loss_of(task: Task, predict: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """The mean loss of a predictor."""
    found: Tensor = batch.mean(task.per_example_loss(predicted(predict, batch), batch.y, batch.live))
    return found


class ChosenGroups(Method):
    """k models of a method, of which each client trains the one that fits its own examples best."""

    k: Count = 3  # number of models, and of groups

    def start(self, turn: Turn) -> Tree | Talk:
        return {"models": several_starts(shared_model(self, super().start(turn)), self.k), "groups": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        # collect, not average: the method's round is played with the members of each group.
        found = yield collect(self.nearest, turn.cohort, send=s["models"])
        groups = s["groups"] | {c: int(reply.argmax()) for c, reply in found.items()}
        there = {g: [c for c in turn.cohort if c in found and groups[c] == g] for g in range(self.k)}
        present = {g: members for g, members in there.items() if members}
        return {"models": (yield from in_groups(super().round, s["models"], present, turn)), "groups": groups}

    @verb
    def nearest(self, models: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        """Which model costs least on the client's training examples, as zeros and a one."""

        own = [super(ChosenGroups, self).personal(w, keep, data) for w in models]
        losses = torch.stack([loss_of(self.task, self.task.at_home(f, data), data.all) for f in own])
        return least_of(losses, data.chance(self.k, salt=1)), keep

    # ---- what the method sees of the state ----

    def of_group(self, s: Tree, client: Client) -> Vec:
        """The model of a client's group; a client without one takes that of the largest."""
        members = list(s["groups"].values())
        found: Vec = s["models"][s["groups"].get(client, max(range(self.k), key=members.count))]
        return found

    def global_model(self, s: Tree) -> None:
        return None

    def download(self, s: Tree, client: Client) -> Tree:
        return super().download(self.of_group(s, client), client)

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return s | {"groups": after["groups"] | s["groups"]}

    def metrics(self, s: Tree) -> dict[str, float]:
        return {}

    def summary(self, s: Tree) -> dict[str, Any]:
        return {"groups": s["groups"]}

    def log(self, before: Tree, after: Tree) -> str:
        return ""

    @classmethod
    def made(cls, base: type[Method], plain: type[Method], name: str) -> type[Method]:
        """The class of groups around a method."""
        if "k" in getattr(base, "__dataclass_fields__", {}):
            raise MethodUnfit(f"{base.__name__} has k models or groups already.\n{FITTING}")
        refuse_other_rounds(base, plain, ("download", "after_visit", "epochs_at_evaluation"))
        said: Mapping[str, Any] = {
            "__doc__": f"{base.__doc__}\n    With k models, of which each client trains the best for it ({name}).",
            "__module__": base.__module__,
            "strength": "k",
        }
        groups = ChosenAlone if is_solo(base.personal) else ChosenGroups
        return type(f"{base.__name__}{name}", (groups, base), dict(said))


class ChosenAlone(ChosenGroups):
    """Around a method whose models are made client by client: so are the choices."""

    @verb(solo=True)
    def nearest(self, models: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return super().nearest(models, keep, data)
