"""The metric that a run goes by: it chooses the round, and tables and verdicts show it.

`train.metric` names it, or leaves it open: then it is what fits the targets. Accuracy rewards a model that
never predicts a rare class, so a federation with a rare class goes by AUC. A method that minimises a loss of the
user's own goes by that loss, on validation and test rows.
Knows settings, targets and users' own functions. Does not know how anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from motet.client import Batch, ClientData, Task
from motet.client.metrics import LARGER, NAMES, OF_LOSSES, OWN, MetricFailed, OwnMetric, fitting
from motet.client.own_loss import OwnLoss
from motet.client.population import is_weighted, some_of
from motet.data.federated import FederatedData
from motet.engines.evaluate import constant
from motet.runs.recipe import Recipe, RecipeError
from motet.settings import import_named
from motet.text import nearest

Counts = Mapping[
    str, float
]  # training rows of each class, by its name; what they count, if they have weights
_RARE = 0.4  # of its even share, below which a class is rare: 20 % of the rows for two classes
_MOST = 0.8  # share of the rows from which one class alone explains the accuracy
_MANY = 20  # classes; of more than these, some are always rare


def chosen_metric(recipe: Recipe, federated: FederatedData, counts: Counts | None = None) -> tuple[str, str]:
    """The metric's name, and why in a sentence: "" if it was given. `counts` are what a server knows of rows that
    are elsewhere."""
    given = recipe["train"].get("metric", "")  # runs of earlier versions have none, and went by the first
    if given == "auto" and ":" in (trained := trained_loss(recipe)):
        return trained, f"{trained}, because it is the loss that is trained"
    if given == "auto":
        known = class_counts(federated) if counts is None else counts
        weighed = is_weighted(federated.clients_data)
        rows = "training rows by weight" if weighed else "training rows"
        return auto_metric(federated.kind, known, recipe.loss.loss, rows)
    if ":" in given:
        own_metric(given, recipe)
    elif given:
        check_fits(given, federated.kind, recipe.loss.loss)
    return given or fitting(federated.kind)[0], ""


def auto_metric(
    kind: str, counts: Counts, loss: str = "auto", rows: str = "training rows"
) -> tuple[str, str]:
    """What fits the targets and the loss, and why; `rows` is what was counted.

    >>> auto_metric("classes", {"alive": 963, "died": 37})[1]
    "auc, because 3.7 % of the training rows are 'died': accuracy would reward never predicting it"
    >>> auto_metric("classes", {"a": 50, "b": 60})[0], auto_metric("numbers", {})[0]
    ('accuracy', 'rmse')
    """
    if kind == "survival":
        return "cindex", "cindex, because the targets are times of survival"
    if kind == "numbers":
        return _metric_of_numbers(loss)
    total, there = max(sum(counts.values()), 1), {c: n for c, n in counts.items() if n}
    if not there:
        return "accuracy", "accuracy, because nothing is known of how many rows each class has"
    shares = {c: n / total for c, n in there.items()}
    rarest, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    if 1 < len(shares) <= _MANY and shares[rarest] < _RARE / len(shares):
        said = f"{_percent(shares[rarest])} of the {rows} are {rarest!r}"
        return "auc", f"auc, because {said}: accuracy would reward never predicting it"
    if 1 < len(shares) <= _MANY and shares[most] >= _MOST:
        said = f"{_percent(shares[most])} of the {rows} are {most!r}"
        return "auc", f"auc, because {said}: accuracy would reward always predicting it"
    return "accuracy", "accuracy, because no class is rare"


def _metric_of_numbers(loss: str) -> tuple[str, str]:
    """Squared errors would choose a round by what other losses do not minimise."""
    if ":" in loss:
        return "loss", "loss, because the model is trained by a loss of its own"
    found = {"absolute": "mae", "quantile": "pinball", "poisson": "deviance"}.get(loss, "rmse")
    if found == "rmse":
        return found, "rmse, because the targets are numbers"
    return found, f"{found}, because the model is trained by the loss {loss}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def class_counts(federated: FederatedData, by_weight: bool = True) -> dict[str, float]:
    """Training rows of each class, of the clients that take part (of a population, of some of them); where rows have
    weights, what they count together, as in losses and scores, or their number."""
    if federated.kind != "classes":
        return {}
    counts = torch.zeros(federated.outputs, dtype=torch.float64)
    for _, held in some_of(federated.clients_data):
        weights = held.train.take().live.double() if by_weight and held.weighted else None
        counts += torch.bincount(held.train.y, weights, minlength=federated.outputs)
    return dict(zip(federated.classes, counts.tolist(), strict=True))


def check_fits(metric: str, kind: str, loss: str = "auto") -> None:
    fits = ("auto", *fitting(kind, loss))
    if (only := [k for k, v in OF_LOSSES.items() if v == metric]) and metric not in fits:
        raise RecipeError(
            f"train.metric is {metric}, which only fits models of the loss {only[0]}\nhint: net.loss={only[0]}, "
            f"or another metric: {', '.join(fits)}"
        )
    if metric in NAMES and metric not in fits:
        raise RecipeError(
            f"train.metric is {metric}, and the targets are {kind}, which it does not fit\n"
            f"hint: {', '.join(fits)}, or your own module:function"
        )
    if metric not in fits:
        raise RecipeError(
            f"train.metric is {metric!r}; there is no such metric\n"
            f"hint: {nearest(metric, fits)}; or your own module:function"
        )


# ---- a user's own ----


def trained_loss(recipe: Recipe) -> str:
    """The loss that the method is told to minimise, if it has such a setting; "" otherwise."""
    return str(recipe["method"].get("loss", ""))


def own_metric(metric: str, recipe: Recipe) -> OwnMetric | None:
    """The function that `module:function` names; None for motet's own metrics. A loss that the method minimises is
    called as in training."""
    if ":" not in metric:
        return None
    made = OwnLoss if metric == trained_loss(recipe) else OwnMetric
    return made(metric, import_named(metric, RecipeError))


def check_own(task: Task, clients_data: Mapping[str, ClientData]) -> None:
    """Refuse, before anything is written, an own metric that cannot score what a client's constant predicts."""
    if task.own is None or isinstance(task.own, OwnLoss):  # training shows at once whether a loss works
        return
    for client, held in some_of(clients_data):
        if not len(held.val):
            continue
        y = held.train.y
        always = constant(task, Batch.of(y[:, None], y), len(held.val)).numpy()
        weights = held.val.take().live.numpy() if held.weighted else None
        try:
            task.own.one(client, task.in_own_unit(held.val.y.numpy()), task.answers(always), weights)
        except MetricFailed as e:
            raise RecipeError(f"{e}\nIt was called with what a constant predicts for validation rows.") from e


def metric_facts(recipe: Recipe) -> dict[str, Any]:
    """What a store says of a resolved recipe's metric: the column of scores, its name, and which way is better."""
    name = recipe.train.metric
    own = own_metric(name, recipe)
    better = own.better if own else 1 if name in LARGER else -1
    return {"metric": OWN if own else name, "metric_name": name, "better": better}
