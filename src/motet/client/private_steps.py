"""Private steps of local training (DP-SGD): Poisson batches, a gradient of each example, clipped, and Gaussian noise.

Abadi et al. 2016, "Deep Learning with Differential Privacy", Algorithm 1, with Poisson sampling as in Opacus: in each
step every row is drawn by itself with the rate 1 / (batches of an epoch). The gradient of each drawn row is cut to
`max_grad_norm`, their sum gets noise of `noise_multiplier * max_grad_norm`, and is divided by the expected number of
rows. What a loss adds beside its rows, say a pull to other weights, is neither cut nor noised: it is the gradient of
a row that does not count (live 0), which rests on no row. Dropout is drawn for each row by its number among the
client's rows, and not by its place in the batch: who else was drawn must not change what a row adds.

In a simulation draws are hashes of (seed, loss, step, position), the same on every engine; whoever knows the seed can
draw them again, so that they protect nobody and are for studies. At a site they come from the system's generator.
Knows rows, weights and gradients of one client. Does not know budgets, methods or engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from motet.client.batches import BatchRule, batches_in_epoch
from motet.client.batchnorm import weights_of
from motet.client.chance import SystemChance
from motet.client.data import Batch, PrivateSteps, hashes, seed_of
from motet.client.dropout import drawing, draws_here
from motet.vec import Vec

_SAMPLE, _NOISE = 0x5A3317, 0x6E015E  # salts that no order and no method's draw has
_HASH = 1 << 62  # hashes are below it
_AT_ONCE = 1 << 22  # numbers of single gradients that are held at once, and draws that are made at once
_GRAIN = 8  # padded batches have a multiple of so many rows, so that few programs are recorded


class PrivateRule(BatchRule, Protocol):
    """A rule of a descent whose steps are private."""

    @property
    def private(self) -> PrivateSteps | None: ...
    def value(self, u: Vec, batch: Batch, given: Any) -> Tensor: ...
    def salt(self, names: tuple[str, ...]) -> int:
        """Of the draws of this descent: another loss or other weights have other noise."""


# ---- one step ----


def private_gradient(
    rule: PrivateRule,
    u: Vec,
    batch: Batch,
    given: Any,
    noise: Tensor,
    expected: Tensor,
    numbers: Tensor | None = None,
) -> Vec:
    """The noised mean of cut gradients, and the gradient of what rests on no row. `noise` is flat, in the order of the
    weights, and as long as it must be; `expected` is the expected number of rows; `numbers` as in `clipped_sum`."""
    x, y, live = (t.new_zeros((1, *t.shape[1:])) for t in (batch.x, batch.y, batch.live))
    beside = grad(rule.value)(u, Batch(x, y, live), given)
    assert rule.private is not None
    total = clipped_sum(rule, u, batch, given, beside, rule.private.max_grad_norm, numbers)
    found: Vec = beside + (total + as_vec(noise, u)) / expected
    return found


def clipped_sum(
    rule: PrivateRule,
    u: Vec,
    batch: Batch,
    given: Any,
    beside: Vec,
    most: float,
    numbers: Tensor | None = None,
) -> Vec:
    """The sum of the gradients of single rows, each as long as `most` at most, without what is `beside`. `numbers` are
    those of the rows among all of the client's, by which each draws; by default their places in the batch."""
    draws = draws_here()

    def one(x: Tensor, y: Tensor, live: Tensor, number: Tensor) -> Vec:
        with (
            drawing(draws.of_row(number)) if draws else nullcontext()
        ):  # a network drops other values in each row
            g = grad(rule.value)(u, Batch(x[None], y[None], live[None]), given) - beside
        # a gradient that is not finite has no length that it could be cut to; it counts as none
        length = weights_of(g).sq().sqrt()
        share = torch.where(live > 0, torch.clamp(most / length.clamp(min=1e-12), max=1.0), 0.0)
        cut: Vec = g.map(lambda a, _: torch.where(torch.isfinite(length), a * share, 0.0))
        return cut

    rows = max(1, _AT_ONCE // max(1, sum(a.numel() for a in u.values())))
    total = u.zeros()
    if not len(batch):  # nobody was drawn: the noise is all
        return total
    if numbers is None:
        numbers = torch.arange(len(batch), device=batch.x.device)
    parts = (t.split(rows) for t in (batch.x, batch.y, batch.live, numbers))
    for x, y, live, number in zip(*parts, strict=True):
        total = total + vmap(one)(x, y, live, number).map(lambda a, _: a.sum(0))
    return total


def as_vec(flat: Tensor, u: Vec) -> Vec:
    """Numbers in the order of the weights, in their shapes."""
    parts = flat.split([a.numel() for a in u.values()])
    return Vec({k: p.reshape(a.shape).to(a.dtype) for (k, a), p in zip(u.items(), parts, strict=True)})


# ---- draws ----


def normal(seed: Tensor, step: Tensor | int, many: int) -> Tensor:
    """(…, many) numbers of mean 0 and deviation 1 by arithmetic; `seed` and `step` broadcast to the first axes."""
    at = torch.arange(2 * many)
    u = (hashes(seed, step, at) >> 9).double().add(0.5) * 2.0**-53  # in (0, 1)
    return torch.sqrt(-2 * torch.log(u[..., :many])) * torch.cos(2 * math.pi * u[..., many:])


def drawn_rows(seed: Tensor, step: Tensor | int, n: Tensor, rate: Tensor, rows: int) -> Tensor:
    """(…, rows) whether each row is in the batch of a step: Poisson sampling; never padding."""
    at = torch.arange(rows)
    return (at < n) & (hashes(seed, step, at) < (rate.double() * _HASH).long())


class Chances(NamedTuple):
    """The seeds of a descent's two streams, each with the axes of the clients' seed."""

    sample: Tensor
    noise: Tensor

    @classmethod
    def of(cls, seed: Tensor, salt: int) -> Chances:
        return cls(*(hashes(seed, seed_of(salt, kind), torch.tensor(0)) for kind in (_SAMPLE, _NOISE)))


def rate_of(rule: BatchRule, n: Tensor) -> Tensor:
    """The rate at which each row is drawn."""
    return 1.0 / batches_in_epoch(rule, n).clamp(min=1).double()


# ---- one client ----


class DrawnStep(NamedTuple):
    """One step of one client."""

    number: int
    at: Tensor  # which rows
    noise: Tensor  # flat, as long as it must be


def private_batches(
    rule: PrivateRule, seed: Tensor, n: Tensor, length: tuple[Tensor, Tensor], sigma: Tensor, u: Vec
) -> Iterator[DrawnStep]:
    """Every step of one client; `length` is epochs and steps, `sigma` the noise multiplier."""
    assert rule.private is not None
    many, rows = sum(a.numel() for a in u.values()), int(n)
    scale = float(sigma) * rule.private.max_grad_norm
    rate, chances = rate_of(rule, n), Chances.of(seed, rule.salt(tuple(u)))
    system = SystemChance() if rule.private.system else None
    for step in range(int(length[1]) or int(length[0]) * int(batches_in_epoch(rule, n))):
        if system:
            chosen, noise = system.uniform(rows) < rate, system.normal((many,))
        else:
            chosen = drawn_rows(chances.sample, step, n, rate, rows)
            noise = normal(chances.noise, step, many)
        yield DrawnStep(step, chosen.nonzero()[:, 0], noise * scale)


# ---- many clients, stacked ----


class StackedSteps(NamedTuple):
    """A few steps of all clients."""

    at: Tensor  # (steps, clients, padded batch): row numbers in the examples of all clients, one after another
    own: Tensor  # (steps, clients, padded batch): the same in the examples of each client
    live: Tensor  # (steps, clients, padded batch): 1 for a drawn row, 0 for padding
    go: Tensor  # (steps, clients): whether the client takes this step
    number: Tensor  # (steps, clients): of the step
    noise: Tensor  # (steps, clients, weights)
    dice: Tensor  # (steps, clients, padded batch) random numbers for the augmentation, or none


def private_schedule(
    rule: PrivateRule,
    seed: Tensor,
    n: Tensor,
    length: tuple[Tensor, Tensor],
    sigma: Tensor,
    u: Vec,
    rows: int,
) -> Iterator[StackedSteps]:
    """All steps of all clients, one at a time; the tensors are (clients,), `u` is stacked. Batches are padded to a size
    that holds the largest, so that no drawn row is left out."""
    assert rule.private is not None
    if rule.private.system:
        raise RuntimeError("noise of the system's generator is drawn at one client, not at stacked ones")
    clients, many = len(n), sum(a[0].numel() for a in u.values())
    rate, chances = rate_of(rule, n), Chances.of(seed, rule.salt(tuple(u)))
    limit = torch.where(length[1] > 0, length[1], length[0] * batches_in_epoch(rule, n))
    first_row = torch.arange(clients) * rows
    scale = (sigma.double() * rule.private.max_grad_norm)[None, :, None]
    group = max(1, _AT_ONCE // max(1, clients * max(rows, 2 * many)))
    for first in range(0, int(limit.max()), group):
        step = torch.arange(first, min(first + group, int(limit.max())))[:, None, None]
        mask = drawn_rows(chances.sample[:, None], step, n[:, None], rate[:, None], rows)
        order, live = packed(mask)
        noise = (normal(chances.noise[:, None], step, many) * scale).float()
        go = step[..., 0] < limit
        dice = hashes(seed[:, None], -2 - step, order) if rule.augment else order[..., :0]
        at, number = order + first_row[:, None], step[..., 0].expand(-1, clients)
        for s in range(len(step)):
            yield StackedSteps(*(t[s : s + 1] for t in (at, order, live, go, number, noise, dice)))


def packed(mask: Tensor) -> tuple[Tensor, Tensor]:
    """(…, rows) flags as numbers of the flagged rows in order, then padding, and which of them are rows."""
    most = int(mask.sum(-1).max())
    width = min(mask.shape[-1], max(_GRAIN, -(-most // _GRAIN) * _GRAIN))
    order = torch.from_numpy(np.argsort(~mask.cpu().numpy(), axis=-1, kind="stable")[..., :width].copy())
    order = order.to(mask.device)
    return order, torch.arange(width) < mask.sum(-1, keepdim=True)
