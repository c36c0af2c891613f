"""Several models of one form at once: mixed, compared, and started apart.

They are lists of models, not one stacked model: a site checks the shapes of every model that comes in a letter.
What clients do with them is safe under vmap. Knows weights. Does not know whose models they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.client import Batch, Task
from motet.client.data import hashes
from motet.vec import Vec

_LEAST = 1e-6  # share of clients below which nobody takes part in a model's mean
_TIE = 1e-6  # largest difference of losses that chance may turn


def other_start(w0: Vec, number: int, share: float = 1.0) -> Vec:
    """Initial weights like w0 of another network: signs of matrices and kernels are drawn anew, or those of a share of
    their weights. Number 0 is w0."""

    def flipped(a: Tensor, salt: int) -> Tensor:
        drawn = (hashes(torch.tensor(number), salt, torch.arange(a.numel())) >> 38) / 2**24  # in [0, 1)
        return torch.where(drawn.reshape(a.shape) < share / 2, -a, a) if a.ndim > 1 else a

    return Vec({k: flipped(a, salt) for salt, (k, a) in enumerate(w0.items())}) if number else w0


def several_starts(w0: Vec, many: int, share: float = 1.0) -> list[Vec]:
    """Initial models that differ."""
    return [other_start(w0, j, share) for j in range(many)]


def mixed(models: Sequence[Vec], weights: Tensor) -> Vec:
    """The sum of models, each by its weight."""

    def one(k: str) -> Tensor:
        every = torch.stack([w[k] for w in models])
        found: Tensor = torch.tensordot(weights.to(every.dtype), every, dims=1)
        return found

    return Vec({k: one(k) for k in models[0]})


def mean_of(models: Sequence[Vec]) -> Vec:
    """The mean of models that count alike."""
    return mixed(models, torch.full((len(models),), 1 / len(models)))


def each_times(w: Vec, weights: Tensor) -> list[Vec]:
    """One model as often as there are weights, each time by its weight."""
    return [weights[j] * w for j in range(len(weights))]


def losses_of(task: Task, models: Sequence[Vec], batch: Batch) -> Tensor:
    """The loss of each model, (models,)."""
    return torch.stack([task.loss_over(w, batch) for w in models])


def least_of(losses: Tensor, chance: Tensor) -> Tensor:
    """Which loss is the least, as zeros and a one; `chance`, in [0, 1), decides between equal ones."""
    return torch.nn.functional.one_hot((losses + _TIE * chance).argmin(), len(losses)).to(losses.dtype)


def shared_means(models: Sequence[Vec], sums: Sequence[Vec], shares: Tensor) -> list[Vec]:
    """Means of several models from the mean of what each client gave to each of them; a model without clients stays."""
    parts = zip(models, sums, shares.tolist(), strict=True)
    return [total / share if share > _LEAST else old for old, total, share in parts]


def flat(models: Sequence[Vec]) -> Tensor:
    """(models, weights) in double precision."""
    return torch.stack([torch.cat([a.flatten() for a in w.values()]).double() for w in models])


def unflat(row: Tensor, like: Vec) -> Vec:
    """The model whose weights are a row of `flat`."""
    parts = torch.split(row, [a.numel() for a in like.values()])
    return Vec({k: v.reshape(a.shape).to(a.dtype) for (k, a), v in zip(like.items(), parts, strict=True)})
