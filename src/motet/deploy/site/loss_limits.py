"""Losses at a site: how much one row may count in what is trained, and which losses the site's own rows do not fit.

Whoever sends a recipe chooses its loss. Weights of classes, focal's gamma and a quantile's level let few rows count
for all, and a reply must not be that of a few rows.
Knows a loss and the site's training targets. Does not know letters or contracts.
"""

from __future__ import annotations

from torch import Tensor

from motet.client import ClientData, Task
from motet.client.losses import Criterion
from motet.deploy.site.policy import Objection

_GAMMA = 5.0  # largest; in the literature it is 2, and at most 5
_LEVELS = 0.01, 0.99  # of quantiles
_SMALL = 1e-4  # of the spread of the targets, below 0, that rounding explains


def heaviest_row(loss: Criterion, y: Tensor) -> float:
    """How many times a mean row the row counts that counts most; the number of rows if no other counts.

    >>> import torch
    >>> heaviest_row(Criterion("cross_entropy", (1.0, 3.0)), torch.tensor([0, 0, 1]))
    1.8
    """
    if not loss.weights or not len(y):
        return 1.0
    each = [loss.weights[k] for k in y.tolist()]
    return round(max(each) * len(each) / sum(each), 9) if sum(each) else float(len(each))


def loss_objections(task: Task, own: ClientData) -> list[Objection]:
    """Why the loss may not train on this site's rows."""
    loss, wrong = task.criterion, []
    if task.kind == "survival":
        wrong.append(Objection("recipe", "times of survival cannot be learned between organisations yet"))
    if loss.name == "focal" and loss.gamma > _GAMMA:
        wrong.append(
            Objection("limits", f"net.gamma is {loss.gamma:g}, and a site accepts {_GAMMA:g} at most")
        )
    if loss.name == "quantile" and not _LEVELS[0] <= loss.level <= _LEVELS[1]:
        wrong.append(
            Objection(
                "limits", f"net.quantile is {loss.level:g}; a site accepts {_LEVELS[0]} to {_LEVELS[1]}"
            )
        )
    if loss.name == "poisson" and _lowest(own) * task.scale + task.offset < -_SMALL * task.scale:
        wrong.append(Objection("data", "net.loss is poisson, and targets of this site are below 0"))
    return wrong


def _lowest(own: ClientData) -> float:
    return min(float(part.y.min()) for part in (own.train, own.val, own.test) if len(part))
