"""The loss that a run trains by: `net.loss` names it, or leaves it open; then it is what fits the targets.

Weights of classes are resolved to numbers as a run starts: from the training rows of all clients, which a server
between organisations knows as counts. So every client trains by the same loss, wherever it lives.
Knows settings, targets and users' own functions. Does not know how anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from motet.client import ClientData, Task
from motet.client.losses import LOSSES, USUAL, Criterion, RowLoss
from motet.client.population import is_weighted, some_of
from motet.core import Method
from motet.data.federated import FederatedData
from motet.runs.choose_metric import Counts, class_counts
from motet.runs.recipe import Recipe, RecipeError, Settings
from motet.settings import import_named
from motet.text import nearest

_OTHER_KIND = {
    "classes": "or data.kind=classes",
    "numbers": "or data.kind=numbers",
    "survival": "or data.kind=survival with data.event, the column that says whether the event was seen",
}
_SMALL = 1e-4  # of the spread of the targets, below 0, that rounding explains
_ROWS = 6  # made rows that an own loss is tried on
_EXPECTED = (
    "hint: function(outputs, targets) must return a tensor with the loss of each row, which gradients flow through "
    "and which depends on that row alone; outputs are (rows, classes) or (rows,)"
)


def chosen_loss(recipe: Recipe, federated: FederatedData, counts: Counts | None = None) -> Settings:
    """The settings of the loss with nothing left open: its name, and a number for each class if classes are
    weighted. `counts` are what a server knows of rows that are elsewhere."""
    asked, kind = recipe.loss, federated.kind
    name = USUAL[kind] if asked.loss == "auto" else asked.loss
    if ":" not in name:
        check_fits(name, kind)
    weights: str | list[float] = asked.class_weights
    if weights != "none" and kind != "classes":
        raise RecipeError(
            f"net.class_weights are for classes, and the targets are {kind}\nhint: net.class_weights=none"
        )
    if weights == "balanced":
        weights = balanced(class_counts(federated) if counts is None else counts)
    if isinstance(weights, str) and weights != "none":
        raise RecipeError(
            f"net.class_weights is {weights!r}\nhint: none, balanced, or a number for each class"
        )
    check_weights(weights, federated, name)
    return vars(asked) | {"loss": name, "class_weights": weights}


def balanced(counts: Counts) -> list[float]:
    """A class with half as many rows counts twice as much; over all rows the mean is 1. A class without training
    rows has no say.

    >>> balanced({"alive": 75, "died": 25})
    [0.6667, 2.0]
    """
    total, there = sum(counts.values()), sum(1 for n in counts.values() if n)
    if not total:
        raise RecipeError(
            "net.class_weights is balanced, and nothing is known of how many rows each class has\n"
            "hint: give a number for each class, say net.class_weights=[1, 5]"
        )
    return [float(f"{total / (there * n):.4g}") if n else 1.0 for n in counts.values()]


def check_weights(weights: str | list[float], federated: FederatedData, name: str) -> None:
    if weights == "none":
        return
    if ":" in name:
        raise RecipeError(
            f"net.class_weights do not reach your own loss {name}\nhint: weight the classes in it"
        )
    if len(weights) != federated.outputs or min(map(float, weights)) < 0 or not any(weights):
        raise RecipeError(
            f"net.class_weights are {len(weights)} numbers, and there are {federated.outputs} classes; "
            "they must be 0 or more, and one of them above 0\n"
            f"hint: in this order: {', '.join(federated.classes)}"
        )


def check_fits(name: str, kind: str) -> None:
    fits = [k for k, wanted in LOSSES.items() if wanted == kind]
    if name not in LOSSES:
        raise RecipeError(
            f"net.loss is {name!r}; there is no such loss\nhint: {nearest(name, ['auto', *fits])}; "
            "or your own module:function"
        )
    if name not in fits:
        raise RecipeError(
            f"net.loss is {name}, and the targets are {kind}, which it does not fit\n"
            f"hint: net.loss={' or '.join(fits)}; {_OTHER_KIND[LOSSES[name]]}"
        )


def criterion_of(recipe: Recipe, federated: FederatedData) -> Criterion:
    """The loss that a recipe describes, on these data."""
    asked = recipe.loss
    name = USUAL[federated.kind] if asked.loss == "auto" else asked.loss
    weights = () if isinstance(asked.class_weights, str) else tuple(map(float, asked.class_weights))
    own = own_loss(name) if ":" in name else None
    if own is not None:
        check_own_loss(name, own, federated.outputs, federated.kind)
    return Criterion(name, weights, asked.gamma, asked.quantile, federated.scale, federated.offset, own)


# ---- a user's own ----


def own_loss(name: str) -> RowLoss:
    """The function that `module:function` names."""
    return import_named(name, RecipeError)


def check_own_loss(name: str, loss: RowLoss, outputs: int, kind: str) -> None:
    """Refuse a function that does not give every row a loss of its own: padding would then change what is learned."""
    shape = (_ROWS, outputs) if kind == "classes" else (_ROWS,)
    z = torch.linspace(-1, 1, _ROWS * (outputs if kind == "classes" else 1)).reshape(shape).requires_grad_()
    y = torch.arange(_ROWS) % outputs if kind == "classes" else torch.linspace(0.5, 2, _ROWS)
    try:
        with torch.enable_grad():
            found: Any = loss(z, y)
            some: Any = loss(z[:-1], y[:-1])
    except Exception as e:  # whatever a user's function raises is the user's to know
        raise RecipeError(f"the loss {name}: {type(e).__name__}: {e}\n{_EXPECTED}") from e
    said = f"the loss {name} was given {_ROWS} rows and returned"
    if not isinstance(found, torch.Tensor) or found.shape != (_ROWS,):
        what = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise RecipeError(f"{said} {what}; expected shape ({_ROWS},)\n{_EXPECTED}")
    if not found.requires_grad:
        raise RecipeError(f"{said} losses that no gradient flows through\n{_EXPECTED}")
    if not torch.isfinite(found).all():
        raise RecipeError(f"{said} losses that are not finite\n{_EXPECTED}")
    if not torch.allclose(some, found[:-1]):
        raise RecipeError(f"{said} losses that depend on other rows\n{_EXPECTED}")


# ---- what the rows must be ----


def check_loss(task: Task, method: Method, clients_data: Mapping[str, ClientData]) -> None:
    """Refuse, before anything is written, a loss that the rows or the method do not fit."""
    loss = task.criterion
    if why := method.unfit_loss():
        raise RecipeError(f"method {type(method).__name__.lower()} and {loss.given}: {why}")
    if loss.name == "poisson":
        negative = [c for c, held in some_of(clients_data) if _has_negative(task, held)]
        if negative:
            raise RecipeError(
                f"net.loss is poisson, which predicts counts, and {len(negative)} of {len(clients_data)} clients "
                "have targets below 0\nhint: net.loss=squared, or leave these rows out"
            )


def check_row_weights(task: Task, method: Method, clients_data: Mapping[str, ClientData]) -> None:
    """Refuse weights of rows that something would not count by: nothing leaves them out without a word."""
    if not is_weighted(clients_data):
        return
    if why := method.unfit_weights():
        raise RecipeError(f"method {type(method).__name__.lower()} and data.weight: {why}")
    if task.own and not task.own.takes_weights:
        raise RecipeError(
            f"rows have weights (data.weight), and the metric {task.own.name} is not given them\n"
            "hint: let it take sample_weight: function(targets, predictions, sample_weight=None)"
        )


def _has_negative(task: Task, held: ClientData) -> bool:
    low = [float(part.y.min()) for part in (held.train, held.val, held.test) if len(part)]
    return min(low) * task.scale + task.offset < -_SMALL * task.scale
