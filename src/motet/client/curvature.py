"""The largest curvature of a loss, and the learning rate that is safe on it.

Gradient descent with a rate above 2 / L diverges where the curvature is L, whatever the data. So a rate is chosen
from L: the largest eigenvalue of the Hessian of the training loss at the initial weights, on batches of the size
that training uses. It is found by power iteration with Hessian-vector products.
Knows losses, weights and batches. Does not know methods or clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from motet.client.batchnorm import statistics, training_mode
from motet.client.data import Batch, hashes
from motet.vec import Vec

_STEPS = 12  # of the power iteration: the eigenvalue is found within a few percent, from below
_SMALLEST, _LARGEST = 1e-6, 1.0  # bounds of a rate


def safe_rate(
    loss: Callable[[Vec, Batch], Tensor], w: Vec, batches: Iterable[Batch], penalty: float
) -> float:
    """1 / L, where L is the largest curvature of all batches and `penalty`; two digits, so that it can be read."""
    most = max((curvature(loss, w, b) for b in batches), default=0.0)
    if not math.isfinite(most):
        return _SMALLEST
    rate = min(_LARGEST, 1 / max(most + penalty, 1e-12))
    return float(f"{max(_SMALLEST, rate):.2g}")


def curvature(loss: Callable[[Vec, Batch], Tensor], w: Vec, batch: Batch) -> float:
    """The largest absolute eigenvalue of the Hessian of a batch's loss at w."""
    still = statistics(w)
    u = w.map(lambda a, _: a.clone())
    params = [a.requires_grad_(True) for k, a in u.items() if k not in still]
    with torch.enable_grad(), training_mode():
        slopes = torch.autograd.grad(loss(u, batch), params, create_graph=True, allow_unused=True)
    used = [(p, g) for p, g in zip(params, slopes, strict=True) if g is not None and g.requires_grad]
    if not used:
        return 0.0
    params, slopes = [p for p, _ in used], tuple(g for _, g in used)
    v, found = first_direction(params), 0.0
    for _ in range(_STEPS):
        product = torch.autograd.grad(slopes, params, v, retain_graph=True, allow_unused=True)
        hv = [torch.zeros_like(p) if h is None else h for p, h in zip(params, product, strict=True)]
        found = length(hv)
        if not math.isfinite(found) or found < 1e-12:
            break
        v = [h / found for h in hv]
    return found


def first_direction(params: Iterable[Tensor]) -> list[Tensor]:
    """A direction of length 1 that is drawn without a global generator."""
    drawn = [
        (hashes(torch.tensor(i), 0, torch.arange(p.numel())) / 2**61 - 1).to(p.dtype).reshape(p.shape)
        for i, p in enumerate(params)
    ]
    total = length(drawn)
    return [d / total for d in drawn]


def length(parts: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(p.detach().double().pow(2).sum()) for p in parts))
