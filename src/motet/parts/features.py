"""What the last layer of a network sees: a client's examples as features of a fixed body.

A head that is trained alone needs each example's features once, and not in every step.
Knows one client's examples. Does not know what the features are for.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from motet.client import Batch, Data, Task
from motet.vec import Vec

_SLICE = 128  # examples in one forward pass
_WIDTHS = (
    10.0,
    15.0,
    20.0,
    50.0,
)  # of the Gaussian kernels of MMD, added: exp(-squared distance / (2 width))


def seen_by_head(task: Task, w: Vec, data: Data) -> Data:
    """The client's data with features in place of examples, padding included; images are not augmented."""
    w = task.weights_at_home(w, data)
    val = Batch(features(task, w, data.val.x), data.val.y, data.val.live)
    return replace(data, x=features(task, w, data.x), val=val, augment=False)


def features(task: Task, w: Vec, x: Tensor) -> Tensor:
    """(examples, features) of the last layer's input."""
    return torch.cat([task.predict_from(w, some)[1] for some in torch.split(x, _SLICE)])


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """-log(e^s / (e^s + e^t)) of each example, with the cosine similarities s to `near` and t to `far`, both divided by
    the temperature: small where features z are like those that they shall be near."""
    s, t = (cosine_similarity(z, other.detach(), -1) for other in (near, far))
    return softplus((t - s) / temperature)


def squared_mmd(x: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples of features, (examples, features) each, of which `live`
    examples are real; 0 where they are the same."""
    p = live / live.sum().clamp(min=1e-12)
    return p @ (_kernel(x, x) + _kernel(y, y) - 2 * _kernel(x, y)) @ p


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """(examples, examples)"""
    far = x.square().sum(-1)[:, None] + y.square().sum(-1) - 2 * x @ y.T
    return torch.stack([torch.exp(-far / (2 * width)) for width in _WIDTHS]).sum(0)
