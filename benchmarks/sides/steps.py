"""One client's local SGD and one client's score, as lean as plain PyTorch allows.

Knows torch. Knows nothing of who calls it: plain_side.py and Flower's clients run these same lines, so
that a difference between the two is the framework's. pfl brings a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from common import Work

Train = Callable[[nn.Module, Tensor, Tensor, Work, torch.Generator], None]


def lone_thread() -> None:
    """Settings of a thread that trains: torch keeps both per thread, so call it in each."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def shuffle(number: int, client: int) -> torch.Generator:
    """The orders of a client's examples in a round (from 1): the same whoever asks, in whichever thread."""
    return torch.Generator().manual_seed(1_000_003 * number + client)


def train(model: nn.Module, x: Tensor, y: Tensor, work: Work, shuffle: torch.Generator) -> None:
    """Local epochs of SGD, in place. `autograd.grad` and one fused add skip the optimizer's bookkeeping."""
    weights = list(model.parameters())
    for _ in range(work.epochs):
        order = torch.randperm(len(y), generator=shuffle)
        for some_x, some_y in zip(x[order].split(work.batch), y[order].split(work.batch), strict=True):
            grads = torch.autograd.grad(cross_entropy(model(some_x), some_y), weights)
            with torch.no_grad():
                torch._foreach_add_(weights, grads, alpha=-work.lr)


def train_with_optimizer(
    model: nn.Module, x: Tensor, y: Tensor, work: Work, shuffle: torch.Generator
) -> None:
    """The same steps as most people write them: backward and torch.optim.SGD."""
    sgd = torch.optim.SGD(model.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        order = torch.randperm(len(y), generator=shuffle)
        for some_x, some_y in zip(x[order].split(work.batch), y[order].split(work.batch), strict=True):
            sgd.zero_grad(set_to_none=True)
            cross_entropy(model(some_x), some_y).backward()
            sgd.step()


@torch.inference_mode()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model(x).argmax(1) == y).float().mean().item()


def tensors(arrays: np.ndarray, channels_last: bool) -> list[Tensor]:
    """One tensor per client, laid out once as the convolutions want it."""
    rows = torch.from_numpy(arrays)
    if not channels_last:
        return list(rows)
    return [row.contiguous(memory_format=torch.channels_last) for row in rows]
