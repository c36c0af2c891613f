"""Evaluation at a client: the only code that sees the examples a client is tested on.

It runs where the client lives and lets only sums leave: how many examples, how many right, how wrong.
Knows methods' predictors and tasks' metrics. Does not know how clients are stored or stacked.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from motet.client import ClientTest, Task, metric_sums
from motet.core import Method, Tree, Verb

Sums = dict[str, Tensor]


def evaluate(method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[dict[str, Sums], Tree]:
    """Sums for the personal model and, where there is one, for the global model."""
    task: Task = method.task
    scores: dict[str, Sums] = {}
    if sent["global"] != ():
        model = task.at_home(partial(task.predict, sent["global"]), who.data)
        scores["global"] = metric_sums(task, model, who.examples)
    if sent["same"]:
        return scores | {"personal": scores["global"]}, keep
    own = task.at_home(method.personal(sent["download"], keep, who.data), who.data)
    return scores | {"personal": metric_sums(task, own, who.examples)}, keep


def evaluation_request(method: Method, state: Tree, download: Tree) -> Tree:
    """What a client is sent for it; `same` says that the personal model is the global one, to score it once."""
    model = method.global_model(state)
    same = model is not None and model is download and type(method).personal is Method.personal
    return {"global": () if model is None else model, "download": download, "same": same}


def personal_model(method: Method, sent: Tree, keep: Tree, who: ClientTest) -> tuple[Tree, Tree]:
    """The personal model itself as a tree, for saving at the client."""
    own: Any = method.task.at_home(method.personal(sent, keep, who.data), who.data)
    if not isinstance(own, partial):
        raise TypeError(
            f"{type(method).__name__}.personal returned a {type(own).__name__}; it must return "
            "functools.partial(self.task.predict, weights), which can be saved"
        )
    return own.args, keep


def evaluate_trained(
    method: Method, train: Verb, sent: Tree, keep: Tree, who: ClientTest
) -> tuple[Tree, Tree]:
    """Train once more, and score the very model that training gives; what would be kept is discarded."""
    reply, fresh = train(sent, keep, who.data)
    own = method.task.at_home(method.trained_model(sent, reply, fresh, who.data), who.data)
    return {
        p: metric_sums(method.task, own, b) for p, b in (("val", who.data.val), ("test", who.examples))
    }, keep
