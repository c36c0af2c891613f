"""Several models of one form at once: stacked along a first axis, mixed, compared, and started apart.

What clients do with them is safe under vmap. Knows weights. Does not know whose models they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.client import Batch, Task
from motet.client.data import hashes
from motet.vec import Vec, stack

_LEAST = 1e-6  # share of clients below which nobody takes part in a model's mean
_TIE = 1e-6  # largest difference of losses that chance may turn


def other_start(w0: Vec, number: int, share: float = 1.0) -> Vec:
    """Initial weights like w0 of another network: signs of matrices and kernels are drawn anew, or those of a share of
    their weights. Number 0 is w0."""

    def flipped(a: Tensor, salt: int) -> Tensor:
        drawn = (hashes(torch.tensor(number), salt, torch.arange(a.numel())) >> 38) / 2**24  # in [0, 1)
        return torch.where(drawn.reshape(a.shape) < share / 2, -a, a) if a.ndim > 1 else a

    return Vec({k: flipped(a, salt) for salt, (k, a) in enumerate(w0.items())}) if number else w0


def several_starts(w0: Vec, many: int, share: float = 1.0) -> Vec:
    """(many, …) initial models that differ."""
    return stack([other_start(w0, j, share) for j in range(many)])  # type: ignore[no-any-return]


def one_of(models: Vec, j: int) -> Vec:
    return models.map(lambda a, _: a[j])


def mixed(models: Vec, weights: Tensor) -> Vec:
    """The sum of stacked models, each by its weight."""
    return models.map(lambda a, _: torch.tensordot(weights.to(a.dtype), a, dims=1))


def each_times(w: Vec, weights: Tensor) -> Vec:
    """One model stacked as often as there are weights, each time by its weight."""
    return w.map(lambda a, _: weights.to(a.dtype).reshape(-1, *(1 for _ in a.shape)) * a)


def losses_of(task: Task, models: Vec, batch: Batch) -> Tensor:
    """The loss of each of the stacked models, (models,)."""
    many = len(next(iter(models.values())))
    return torch.stack([task.loss_over(one_of(models, j), batch) for j in range(many)])


def least_of(losses: Tensor, chance: Tensor) -> Tensor:
    """Which loss is the least, as zeros and a one; `chance`, in [0, 1), decides between equal ones."""
    return torch.nn.functional.one_hot((losses + _TIE * chance).argmin(), len(losses)).to(losses.dtype)


def shared_means(models: Vec, sums: Vec, shares: Tensor) -> Vec:
    """Means of several models from the mean of what each client gave to each of them; a model without clients stays."""
    mean = sums.map(
        lambda a, _: a / shares.clamp(min=_LEAST).to(a.dtype).reshape(-1, *(1 for _ in a.shape[1:]))
    )
    return mean.where(shares > _LEAST, models)


def flat(models: Sequence[Vec]) -> Tensor:
    """(models, weights) in double precision."""
    return torch.stack([torch.cat([a.flatten() for a in w.values()]).double() for w in models])
