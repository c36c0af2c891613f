"""The judge: the one verb that sees the examples a client is tested on.

It runs where the client lives and lets only sums leave: how many examples, how many right, how wrong.
Knows methods' predictors and tasks' tallies. Does not know how clients are stored or stacked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from motet.client import Examinee, Task, tally
from motet.core import Method, Tree

Sums = dict[str, Tensor]
Job = Callable[[Tree, Tree, Any], tuple[Tree, Tree]]


def judge(method: Method, sent: Tree, keep: Tree, who: Examinee) -> tuple[dict[str, Sums], Tree]:
    """Sums for the personal model and, where there is one, for the global model."""
    task: Task = method.task
    scores: dict[str, Sums] = {}
    if sent["general"] != ():
        general = task.at_home(partial(task.predict, sent["general"]), who.data)
        scores["global"] = tally(task, general, who.exam)
    if sent["same"]:
        return scores | {"personal": scores["global"]}, keep
    own = task.at_home(method.personal(sent["view"], keep, who.data), who.data)
    return scores | {"personal": tally(task, own, who.exam)}, keep


def question(method: Method, state: Tree, view: Tree) -> Tree:
    """What the judge is sent; `same` says that the personal model is the global one, to score it once."""
    general = method.general(state)
    same = general is not None and general is view and type(method).personal is Method.personal
    return {"general": () if general is None else general, "view": view, "same": same}


def portrait(method: Method, sent: Tree, keep: Tree, who: Examinee) -> tuple[Tree, Tree]:
    """The personal model itself as a tree, for saving at the client."""
    own: Any = method.task.at_home(method.personal(sent, keep, who.data), who.data)
    return own.args, keep


def rehearsal(method: Method, train: Job, sent: Tree, keep: Tree, who: Examinee) -> tuple[Tree, Tree]:
    """Train once more, and score the very model that left; what would be kept is discarded."""
    reply, fresh = train(sent, keep, who.data)
    own = method.task.at_home(method.trained(sent, reply, fresh, who.data), who.data)
    return {p: tally(method.task, own, b) for p, b in (("val", who.data.val), ("test", who.exam))}, keep
