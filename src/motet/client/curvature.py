"""The largest curvature of a loss, and the learning rate that is safe on it.

Gradient descent with a rate above 2 / L diverges where the curvature is L, whatever the data. So a rate is chosen
from L: the largest eigenvalue of the Hessian of the training loss at the initial weights, on batches of the size
that training uses. It is found by power iteration with Hessian-vector products.
Adam's steps have about the length of the rate in every weight, however steep the loss is. So its rate is one at which
such a step costs little even where it leads nowhere: the curvature along the signs of the gradient, s'Hs, adds at most
a hundredth to the loss, rate^2 s'Hs / 2. Once the gradient is noise, this is how far above its minimum the loss stays.
Knows losses, weights and batches. Does not know methods or clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from motet.client.batchnorm import statistics, training_mode
from motet.client.data import Batch, hashes
from motet.vec import Vec

_STEPS = 12  # of the power iteration: the eigenvalue is found within a few percent, from below
_SMALLEST, _LARGEST = 1e-6, 1.0  # bounds of a rate
_LARGEST_ADAM = 0.01
_ADDED = 0.01  # share of the loss that a step of Adam may add


def safe_rate(
    loss: Callable[[Vec, Batch], Tensor], w: Vec, batches: Iterable[Batch], penalty: float
) -> float:
    """1 / L, where L is the largest curvature of all batches and `penalty`; two digits, so that it can be read."""
    return rate_on(largest_curvature(loss, w, batches), penalty)


def largest_curvature(loss: Callable[[Vec, Batch], Tensor], w: Vec, batches: Iterable[Batch]) -> float:
    return max((curvature(loss, w, b) for b in batches), default=0.0)


def rate_on(most: float, penalty: float) -> float:
    """The safe rate where the largest curvature is known."""
    if not math.isfinite(most):
        return _SMALLEST
    rate = min(_LARGEST, 1 / max(most + penalty, 1e-12))
    return float(f"{max(_SMALLEST, rate):.2g}")


def safe_adam_rate(
    loss: Callable[[Vec, Batch], Tensor], w: Vec, batches: Iterable[Batch], penalty: float
) -> float:
    """The largest rate at which a step of Adam adds little to the loss of any batch; two digits."""
    found = [adam_rate(*along_signs(loss, w, b, penalty)) for b in batches]
    rate = min(found, default=_LARGEST_ADAM)
    return float(f"{min(_LARGEST_ADAM, max(_SMALLEST, rate)):.2g}")


def adam_rate(height: float, bend: float) -> float:
    """The rate at which rate^2 bend / 2 is a small share of the loss."""
    if not math.isfinite(height) or not math.isfinite(bend):
        return _SMALLEST
    return math.sqrt(2 * _ADDED * abs(height) / bend) if bend > 0 else _LARGEST_ADAM


def along_signs(
    loss: Callable[[Vec, Batch], Tensor], w: Vec, batch: Batch, penalty: float
) -> tuple[float, float]:
    """The loss of a batch at w, and its curvature s'Hs along the signs s of its gradient, `penalty` included."""
    value, params, slopes = slopes_at(loss, w, batch)
    if not params:
        return value, 0.0
    signs = [g.detach().sign() for g in slopes]
    product = torch.autograd.grad(slopes, params, signs, allow_unused=True)
    bend = sum(float((h * s).sum()) for h, s in zip(product, signs, strict=True) if h is not None)
    return value, abs(bend) + penalty * sum(float(s.abs().sum()) for s in signs)


def slopes_at(
    loss: Callable[[Vec, Batch], Tensor], w: Vec, batch: Batch
) -> tuple[float, list[Tensor], list[Tensor]]:
    """A batch's loss at w, weights that it has a curvature in, and its slopes in them, which can be derived again."""
    still = statistics(w)
    u = w.map(lambda a, _: a.clone())
    params = [a.requires_grad_(True) for k, a in u.items() if k not in still]
    # torch's quick kernels of attention can be derived once only.
    with torch.enable_grad(), training_mode(), sdpa_kernel(SDPBackend.MATH):
        value = loss(u, batch)
        slopes = torch.autograd.grad(value, params, create_graph=True, allow_unused=True)
    used = [(p, g) for p, g in zip(params, slopes, strict=True) if g is not None and g.requires_grad]
    return float(value.detach()), [p for p, _ in used], [g for _, g in used]


def curvature(loss: Callable[[Vec, Batch], Tensor], w: Vec, batch: Batch) -> float:
    """The largest absolute eigenvalue of the Hessian of a batch's loss at w."""
    _, params, slopes = slopes_at(loss, w, batch)
    if not params:
        return 0.0
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
