"""Learning rates and epochs that a recipe leaves open: what is safe for the network and the data is chosen as a run
starts.

The rate is 1 / L, and L is the largest curvature of the training loss on some batches of some clients
(client/curvature.py). Which batches they are depends on the data alone, so the same recipe has the same rate. Adam and
AdamW get a rate from the curvature along the signs of gradients instead, because so they step.
A server between organisations holds no rows. There the rate comes from made rows whose columns are all the same
number: of all standardised tables, such a table has the largest curvature.
A client with few rows makes one or two steps in an epoch, and hundreds of rounds would not train it. So epochs are as
many as give most clients a few steps in a round.
Knows methods' settings and clients' rows. Does not train.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
from torch import nn

from motet.client import Batch, Task
from motet.client.curvature import largest_curvature, rate_on, safe_adam_rate
from motet.client.data import take
from motet.client.population import is_weighted, names_of, sizes_of, some_of
from motet.core import AT_HOME, Method
from motet.data.federated import FederatedData
from motet.settings import AUTO

_CLIENTS = 32  # clients whose batches are measured
_BATCHES = 4  # batches of each of them
_STEPS = 8  # of most clients in a round
_MOST_EPOCHS = 10
_MOST_MEASURED = 1000  # curvatures that are remembered
_MADE = 4096  # rows that are made up at most; more of them have the same curvature
_FEW = 4  # clients, one batch each, where a network is slow

_measured: dict[str, float] = {}  # largest curvatures, by a hash of all that they depend on


def open_rates(method: type[Method], settings: dict[str, Any]) -> dict[str, float]:
    """The learning rates that are left open, each with its share of the safe rate."""
    known = {k: args for k, args in typed(method, float).items() if settings.get(k) == AUTO}
    return {k: float((*args[3:], 1.0)[0]) for k, args in known.items() if AT_HOME not in args}


def open_epochs(method: type[Method], settings: dict[str, Any]) -> list[str]:
    """The numbers of epochs that are left open."""
    return [k for k in typed(method, int) if settings.get(k) == AUTO]


def typed(method: type[Method], kind: type) -> dict[str, tuple[Any, ...]]:
    """The settings of an annotated type, with what it says."""
    hints = {k: get_args(v) for k, v in get_type_hints(method, include_extras=True).items()}
    return {k: args for k, args in hints.items() if args and args[0] is kind}


def epochs_for(method: Method, federated: FederatedData) -> int:
    """So many that half of the clients make at least a few steps; 1 where rows are elsewhere, and where steps count.

    >>> -(-_STEPS // 3)  # of clients with three batches
    3
    """
    if not federated.clients_data or int(getattr(method, "steps", 0)):
        return 1
    rows = int(np.sort(sizes_of(federated.clients_data)[:, 0])[len(federated.clients_data) // 2])
    steps = max(1, -(-rows // int(getattr(method, "batch", 16))))
    return min(_MOST_EPOCHS, max(1, -(-_STEPS // steps)))


def rates_for(method: Method, task: Task, federated: FederatedData) -> tuple[float, float]:
    """The largest learning rates that are safe for this method's local training: at what leaves the client, and with
    the pulls that act at home."""
    size = int(getattr(method, "batch", 16))
    rows = list(batches(federated, size, task)) if federated.clients_data else [made_rows(federated, size)]
    known, penalty = typed(type(method), float).items(), float(getattr(method, "penalty", float)())
    pull = sum(float(getattr(method, k)) for k, args in known if AT_HOME in args and AUTO not in args)
    if getattr(method, "optimiser", "sgd") == "sgd":
        most = known_curvature(task, rows)
        return rate_on(most, penalty), rate_on(most, penalty + pull)
    usual = safe_adam_rate(task.curved_loss, task.w0, rows, penalty)
    return usual, safe_adam_rate(task.curved_loss, task.w0, rows, penalty + pull) if pull else usual


def known_curvature(task: Task, rows: Sequence[Batch]) -> float:
    """The largest curvature of the batches; measured once for all methods of a study that start alike."""
    key = all_that_counts(task, rows)
    if key is None:
        return largest_curvature(task.curved_loss, task.w0, rows)
    if key not in _measured:
        if len(_measured) >= _MOST_MEASURED:
            _measured.clear()
        _measured[key] = largest_curvature(task.curved_loss, task.w0, rows)
    return _measured[key]


def all_that_counts(task: Task, rows: Sequence[Batch]) -> str | None:
    """A hash of network, loss, weights and rows; None for networks and losses that can look the same and differ: only
    a sequence of torch's own layers is told whole by its text."""
    modules = [m for m in task.net.modules() if type(m) is not nn.Sequential]
    plain = all(type(m).__module__.startswith("torch.nn.") and not [*m.children()] for m in modules)
    if not plain or task.criterion.own is not None:
        return None
    found = sha256(repr((task.net, task.criterion, task.kind)).encode())
    weights = (*task.net.state_dict().values(), *task.w0.values())
    for a in (*weights, *(t for b in rows for t in (b.x, b.y, b.live))):
        found.update(f"{a.dtype} {tuple(a.shape)}".encode())
        found.update(a.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def batches(federated: FederatedData, size: int, task: Task) -> Iterator[Batch]:
    """Some batches of some clients, both evenly spaced: the largest clients must not decide alone. Of rows with
    weights also the steepest, because one row may count more than all others of its batch."""
    fast = task.dense and not federated.pixels
    everyone = federated.clients_data
    for client in evenly(names_of(everyone), _CLIENTS if fast else _FEW):
        data = everyone[client]
        for at in evenly(list(torch.arange(data.n).split(size)), _BATCHES if fast else 1):
            rows = data.train
            if isinstance(rows, Batch):
                live = rows.evened().live if data.weighted else rows.live
                yield Batch(rows.x[at], rows.y[at], live[at])
            else:
                yield Batch.of(take(rows.shared_x, rows.at[at]), rows.shared_y[rows.at[at]])
    weighted = (d.train.take() for _, d in some_of(everyone) if d.weighted) if is_weighted(everyone) else ()
    yield from (steepest(rows, size) for rows in weighted if rows.live.unique().numel() > 1)


def steepest(rows: Batch, size: int) -> Batch:
    """The batch of rows that bend a loss most: by weight and squared length, as in a linear layer with a bias.

    >>> rows = Batch(torch.tensor([[1.0], [2.0], [1.0]]), torch.zeros(3), torch.tensor([1.0, 1.0, 4.0]))
    >>> steepest(rows, 1).live
    tensor([2.])
    """
    bend = rows.live * (1 + rows.x.flatten(1).square().sum(1))
    at = bend.topk(min(size, len(rows))).indices
    return Batch(rows.x[at], rows.y[at], rows.evened().live[at])


def evenly(things: Sequence[Any], most: int) -> Sequence[Any]:
    return [things[i * len(things) // most] for i in range(most)] if len(things) > most else things


def made_rows(federated: FederatedData, size: int) -> Batch:
    """Rows of equal columns, from the quantiles of the normal distribution, or codes of words; classes in turn."""
    size = min(size, _MADE)
    share = (torch.arange(size) + 0.5) / size
    z = torch.special.ndtri(share)
    x = z.reshape(-1, *(1 for _ in federated.shape)).expand(size, *federated.shape)
    if federated.codes:
        x = torch.arange(x.numel()).reshape(x.shape) % federated.codes
    y = torch.arange(size) % federated.outputs if federated.kind == "classes" else z
    return Batch.of(x.contiguous(), y)
