"""Losses: what training minimises, as functions of a network's outputs and of targets.

A loss is a number for each row, and a batch's loss is the mean over its rows, each by its weight where rows have
weights (`live`, 0 for padding, which never counts). Numbers that a
network predicts are standardised (`scale`, `offset`), except for poisson, whose outputs are logarithms of rates.
Functions work on any leading axes, under vmap, and in compiled steps.
Knows outputs, targets and which rows are padding. Does not know networks, methods or clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

Kind = Literal["classes", "numbers", "survival"]
RowLoss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, str] = {  # the kind of target that each is for
    "cross_entropy": "classes",
    "focal": "classes",
    "squared": "numbers",
    "absolute": "numbers",
    "quantile": "numbers",
    "poisson": "numbers",
    "cox": "survival",
}
USUAL: dict[str, str] = {"classes": "cross_entropy", "numbers": "squared", "survival": "cox"}
_AT_ONCE = 512  # rows whose risk sets are laid out at once
_KINK = 0.1  # width of the Huber loss whose curvature stands for that of a loss with a kink
_LEAST = 1e-12  # probability of being wrong below which focal's factor stays as it is


@dataclass(frozen=True)
class Criterion:
    """A loss with its settings. `scale` and `offset` turn standardised numbers into the target's own unit; the mean
    of the training targets is `offset`, which poisson takes as the rate of an output of 0."""

    name: str = "cross_entropy"
    weights: tuple[float, ...] = ()  # of the classes; () counts all alike
    gamma: float = 2.0  # focal only
    level: float = 0.5  # quantile only
    scale: float = 1.0
    offset: float = 0.0
    own: RowLoss | None = None  # a user's own function (outputs, targets) -> losses of rows

    @property
    def usual(self) -> bool:
        """Whether it is the plain cross-entropy or squared error."""
        return self.name in ("cross_entropy", "squared") and not self.weights

    @property
    def given(self) -> str:
        """What makes it another loss than the usual one, as settings; where nothing does, its name."""
        weighted = ["net.class_weights"] if self.weights else []
        named = [] if weighted and self.name in USUAL.values() else [f"net.loss={self.name}"]
        return " with ".join([*named, *weighted])

    @property
    def rate(self) -> float:
        """What poisson's output of 0 means: the mean of the training targets, in their own unit."""
        return self.offset if self.offset > 0 else 1.0

    def of_rows(self, z: Tensor, y: Tensor, live: Tensor | None = None) -> Tensor:
        """The loss of each row, (…, rows); outputs are (…, rows, classes) or (…, rows)."""
        if self.own is not None:  # it knows rows only, each of which has a loss of its own
            return self.own(z.reshape(-1, *z.shape[y.ndim :]), y.reshape(-1)).reshape(y.shape)
        if self.name in ("cross_entropy", "focal"):
            return self._of_classes(z, y)
        if self.name == "cox":
            return cox(z, y, torch.ones_like(z) if live is None else live)
        if self.name == "poisson":
            return half_deviance(z, self.counts(y))
        if self.name == "squared":
            return (z - y) ** 2
        return (z - y).abs() if self.name == "absolute" else pinball(z, y, self.level)

    def _of_classes(self, z: Tensor, y: Tensor) -> Tensor:
        loss = torch.logsumexp(z, -1) - z.gather(-1, y[..., None]).squeeze(-1)  # cross-entropy
        if self.name == "focal":
            loss = loss * (-torch.expm1(-loss)).clamp(min=_LEAST) ** self.gamma
        if not self.weights:
            return loss
        return loss * torch.tensor(self.weights, dtype=loss.dtype)[y]

    def curved(self) -> Criterion:
        """A loss with the curvature that decides on a learning rate. Absolute errors and quantiles have none but
        in their kink; a Huber loss of the same slopes has 1 / width there, and a squared error has 2."""
        if self.name not in ("absolute", "quantile"):
            return self
        return replace(self, name="own", own=_steep_squares)

    # ---- what outputs mean ----

    def counts(self, y: Tensor) -> Tensor:
        """Standardised targets as multiples of `rate`."""
        return ((y * self.scale + self.offset) / self.rate).clamp(min=0)

    def numbers(self, z: Any) -> Any:
        """Outputs as standardised numbers, which `scale` and `offset` turn into the target's own unit."""
        if self.name != "poisson":
            return z
        exp = torch.exp if isinstance(z, Tensor) else _numpy_exp
        return (exp(z) * self.rate - self.offset) / self.scale

    def constant(self, y: Tensor, live: Tensor) -> Tensor:
        """The output that costs least if it is the same for all rows: the mean, the logarithm of its rate, or a
        quantile; survival knows risks only against each other."""
        if self.name == "cox":
            return torch.zeros(())
        if self.name in ("absolute", "quantile"):
            return _quantile(y, live, 0.5 if self.name == "absolute" else self.level)
        total = live.sum()
        mean = (y * live).sum() / torch.where(total > 0, total, 1.0)
        return self.counts(mean).clamp(min=1e-6).log() if self.name == "poisson" else mean


# ---- the losses ----


def cox(z: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """The negative logarithm of Cox's partial likelihood (Cox 1972), tied times after Breslow: a row whose event was
    seen costs the logarithm of the sum of exp(output - its own) over all rows that were still watched then. Rows
    that are censored cost nothing. Targets are times, negative where censored."""
    rows = range(0, max(z.shape[-1], 1), _AT_ONCE)
    parts = [_cox_of(slice(k, k + _AT_ONCE), z, y, live) for k in rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _cox_of(at: slice, z: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """Of some rows, against all."""
    time, own = y.abs(), torch.arange(z.shape[-1])
    watched = (time[..., None, :] >= time[..., at, None]) & (live[..., None, :] > 0)  # (…, some rows, rows)
    watched = watched | (own[at, None] == own)  # padding watches itself, so that no sum is empty
    risks = torch.where(watched, z[..., None, :], -torch.inf)
    seen = (y[..., at] > 0) & (live[..., at] > 0)
    return torch.where(seen, torch.logsumexp(risks, -1) - z[..., at], 0.0)


def half_deviance(z: Tensor, counts: Tensor) -> Tensor:
    """Half of Poisson's deviance of counts from the rate exp(z): its negative log-likelihood, less that of a rate
    that is the count itself."""
    return torch.exp(z) - counts * z + torch.xlogy(counts, counts) - counts


def pinball(z: Tensor, y: Tensor, level: float) -> Tensor:
    """The loss whose least mean is at the quantile `level` (Koenker and Bassett 1978)."""
    miss = y - z
    return torch.maximum(level * miss, (level - 1) * miss)


def _steep_squares(z: Tensor, y: Tensor) -> Tensor:
    return (z - y) ** 2 / (2 * _KINK)


def _numpy_exp(z: Any) -> Any:
    import numpy as np

    with np.errstate(over="ignore"):
        return np.exp(z)


def _quantile(y: Tensor, live: Tensor, level: float) -> Tensor:
    """The smallest target that at least the share `level` of the rows, by their weights, does not exceed."""
    ascending, order = torch.where(live > 0, y, torch.inf).sort()
    upto = live.gather(-1, order).cumsum(-1)
    place = (upto < level * live.sum()).sum(-1).clamp(max=y.shape[-1] - 1)
    return ascending.gather(-1, place[..., None]).squeeze(-1)


def why_loss_not_stacked(criterion: Criterion, kind: Kind, outputs: int) -> str:
    """Why a loss of the user's own cannot be computed for several clients at once; "" if it can. It is tried: torch has
    no stacked form of one_hot, and none of a branch on a number."""
    if criterion.own is None:
        return ""
    own, classes = criterion.own, kind == "classes"
    z = torch.zeros(2, 3, outputs) if classes else torch.zeros(2, 3)
    y = torch.zeros(2, 3).long() if classes else torch.ones(2, 3)
    try:
        vmap(grad(lambda z, y: own(z, y).sum()))(z, y)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        said = f"{type(e).__name__}: {e}".partition("\n")[0]
        return f"the loss {criterion.name} cannot be computed for several clients at once ({said})"
    return ""
