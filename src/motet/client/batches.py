"""Which examples are in which step: the batches of one client, and the steps of many clients side by side.

An epoch is a shuffled pass over a client's rows, batch by batch. A client takes whole epochs, or a given number of
steps, for which it goes on into further epochs and ends in the middle of one.
Knows numbers of rows, seeds and batches. Does not know losses or weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from motet.client.data import hashes, orders

_INDICES = 1 << 22  # row numbers of examples that are held in memory at once


class BatchRule(Protocol):
    """How rows become batches."""

    @property
    def batch(self) -> int: ...
    @property
    def drop_last(self) -> bool:
        """Leave out a last batch that is not full, except at a client that fills none."""

    @property
    def augment(self) -> bool: ...


class ScheduledSteps(NamedTuple):
    """A few steps of all clients."""

    at: Tensor  # (steps, clients, batch): row numbers in the examples of all clients, one after another
    live: Tensor  # (steps, clients, batch): 1 for an example, 0 for padding
    go: Tensor  # (steps, clients): whether the client takes this step
    dice: Tensor  # (steps, clients, batch) random numbers for the augmentation, or (steps, clients, 0) without it
    number: Tensor  # (steps, clients): the client's own steps, counted from 0; dropout goes by it


def batch_rows(batch: int, rows: int) -> int:
    """The rows of a batch as it is laid out: none is longer than all rows of a client. In powers of two, so that
    chunks of about the same size have the same program.

    >>> batch_rows(16, 70), batch_rows(100_000, 70)
    (16, 128)
    """
    return min(batch, 1 << max(rows - 1, 0).bit_length())


def batches_in_epoch(rule: BatchRule, n: Tensor) -> Tensor:
    """How many batches n rows are."""
    every = -(-n // rule.batch)
    return torch.where(n < rule.batch, every, n // rule.batch) if rule.drop_last else every


def dice(seed: Tensor, epoch: Tensor | int, at: Tensor) -> Tensor:
    """Random numbers for the augmentation of each example in an epoch."""
    return hashes(seed, -2 - epoch, at)  # negative salts: orders and methods' draws have others


# ---- one client ----


def batches(
    rule: BatchRule, seed: Tensor, n: Tensor, epochs: Tensor, steps: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """(epoch, row numbers) of every batch of one client; `steps` of them, or those of `epochs` if it is 0."""
    in_epoch = int(batches_in_epoch(rule, n))
    left = int(steps) or int(epochs) * in_epoch
    epoch = 0
    while left > 0 and in_epoch:
        for at in orders(seed, epoch, n, int(n)).split(rule.batch)[: min(left, in_epoch)]:
            yield epoch, at
        left -= in_epoch
        epoch += 1


# ---- many clients, stacked ----


def schedule(
    rule: BatchRule, n: Tensor, seed: Tensor, epochs: Tensor, steps: Tensor, rows: int, size: int
) -> Iterator[ScheduledSteps]:
    """All steps of all clients, `size` at a time. Clients with fewer steps than others skip some (`go`).

    `n`, `seed`, `epochs` and `steps` are (clients,); `rows` is how many rows each client has with its padding.
    """
    if not steps.any():
        parts = epoch_by_epoch(rule, n, seed, epochs, rows)
    else:
        limit = torch.where(steps > 0, steps, epochs * batches_in_epoch(rule, n))
        parts = step_by_step(rule, n, seed, limit, rows, size)
    for part in parts:
        # Steps become the first axis, so that a few of them are one slice.
        yield from _cut(ScheduledSteps(*(t.transpose(0, 1).contiguous() for t in part)), size)


def epoch_by_epoch(
    rule: BatchRule, n: Tensor, seed: Tensor, epochs: Tensor, rows: int
) -> Iterator[ScheduledSteps]:
    """Some epochs of all clients at a time, with clients as the first axis; all begin an epoch together."""
    clients, top = len(n), int(n.max())
    most = int(epochs.max()) if top else 0  # where nobody has rows there is nothing to lay out
    steps = -(-top // rule.batch)  # of the largest client in an epoch
    first_row = (torch.arange(clients) * rows)[:, None]  # of each client in the rows of all
    group = max(1, _INDICES // max(1, clients * top))  # epochs that are laid out at once
    place = torch.arange(steps * rule.batch).reshape(steps, rule.batch)  # in an epoch: real where below n
    whole = torch.arange(steps) < batches_in_epoch(rule, n)[:, None]  # (clients, steps of an epoch)
    for first in range(0, most, group):
        epoch = torch.arange(first, min(first + group, most))
        # (clients, epochs, top), then padded to whole batches
        order = orders(seed[:, None, None], epoch[None, :, None], n[:, None, None], top)
        order = pad(order, (0, steps * rule.batch - top))
        key = dice(seed[:, None, None], epoch[None, :, None], order) if rule.augment else order[..., :0]
        # (clients, steps of all epochs, batch), as are key and live
        at = order.reshape(clients, -1, rule.batch) + first_row[:, :, None]
        key = key.reshape(*at.shape[:2], -1)
        live = (place[None] < n[:, None, None]).float().repeat(1, len(epoch), 1)
        go = (whole[:, None, :] & (epoch[None, :, None] < epochs[:, None, None])).flatten(1)
        before = epoch[None, :, None] * batches_in_epoch(rule, n)[:, None, None]
        number = (before + torch.arange(steps)).flatten(1)
        yield ScheduledSteps(at, live, go, key, number)


def step_by_step(
    rule: BatchRule, n: Tensor, seed: Tensor, limit: Tensor, rows: int, size: int
) -> Iterator[ScheduledSteps]:
    """Some steps of all clients at a time, with clients as the first axis; `limit` (clients,) of them each.

    A client goes on into its next epoch while others are still in an earlier one.
    """
    clients, most = len(n), int(limit.max())
    group = size * max(1, _INDICES // (clients * rule.batch * size))  # steps that are laid out at once
    for first in range(0, most, group):
        last = min(first + group, most)
        found = [client_steps(rule, n[c], seed[c], int(limit[c]), first, last) for c in range(clients)]
        at, *rest = (torch.stack(parts) for parts in zip(*found, strict=True))
        yield ScheduledSteps(at + (torch.arange(clients) * rows)[:, None, None], *rest)


def client_steps(
    rule: BatchRule, n: Tensor, seed: Tensor, limit: int, first: int, last: int
) -> ScheduledSteps:
    """Steps `first` to `last` of one client: (steps, batch) each, without an axis of clients."""
    in_epoch, wanted = int(batches_in_epoch(rule, n)), torch.arange(first, last)
    go = (wanted < limit) & (in_epoch > 0)
    wanted = wanted.clamp(max=limit - 1) if limit and in_epoch else torch.zeros_like(wanted)
    in_epoch = max(in_epoch, 1)
    epochs = torch.arange(int(wanted[0]) // in_epoch, int(wanted[-1]) // in_epoch + 1)
    row = torch.arange(in_epoch * rule.batch)
    order = orders(seed, epochs[:, None], n, int(n))[:, : len(row)]
    order = pad(order, (0, len(row) - order.shape[1]))
    key = dice(seed, epochs[:, None], order) if rule.augment else order[:, :0]
    at = order.reshape(-1, rule.batch)
    mine = wanted - epochs[0] * in_epoch  # which of these batches
    live = (row < n).float().reshape(-1, rule.batch)[wanted % in_epoch]
    return ScheduledSteps(at[mine], live, go, key.reshape(len(at), -1)[mine], wanted)


def _cut(all_steps: ScheduledSteps, size: int) -> Iterator[ScheduledSteps]:
    """The steps, `size` at a time, without those that no client takes."""
    go = all_steps.go
    if spare := -len(go) % size:  # recorded functions want `size` steps: the last ones are taken by nobody
        all_steps = ScheduledSteps(*(torch.cat([t, t[:1].expand(spare, *t.shape[1:])]) for t in all_steps))
        go = all_steps.go
        go[-spare:] = False
    busy = go.reshape(-1, size * go.shape[1]).any(1).tolist()
    for s, some in zip(range(0, len(go), size), busy, strict=True):
        if some:
            yield ScheduledSteps(*(t[s : s + size] for t in all_steps))
