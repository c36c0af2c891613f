"""What many weight vectors cost one client: losses in double precision, of all of them at once.

Particles come as (swarms, particles, numbers). Losses of networks go through the task; a linear network is one
product of matrices; squared errors of a linear network need the examples only once (`root`).

Knows a task and one client's examples. Does not know where particles come from. Safe under vmap, but for `scored`.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from motet.client import Data, Task
from motet.client.data import hashes
from motet.vec import Vec

Array = np.ndarray[Any, Any]
PER_CLASS = ("one_vs_all", "published")  # losses with a swarm for each class
_NOISE = 1 << 42  # salt of the noise, far from those of other draws
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_SMALL = 1e-3  # what the authors' notebook adds inside its logarithms


def linear(task: Task) -> bool:
    """Whether the network is one linear layer and nothing else that counts."""
    kinds = [type(m) for m in task.net.modules() if not isinstance(m, nn.Sequential | nn.Flatten)]
    return kinds == [nn.Linear]


def numbers(task: Task, per_class: bool) -> int:
    """How many a particle has."""
    every = sum(w.numel() for w in task.w0.values())
    return every // task.outputs if per_class else every


def weights(task: Task, theta: Tensor, per_class: bool) -> Vec:
    """Particles as weights with a first axis of particles; per class, the i-th ones of all swarms make one network."""
    rows = theta.transpose(0, 1) if per_class else theta.flatten(0, 1)  # (particles, classes, numbers) or
    sizes = [w[0].numel() if per_class else w.numel() for w in task.w0.values()]
    parts = torch.split(rows, sizes, -1)
    return Vec({k: p.reshape(len(p), *w.shape) for (k, w), p in zip(task.w0.items(), parts, strict=True)})


def particle(task: Task, per_class: bool) -> Tensor:
    """The network's first weights as (swarms, numbers)."""
    parts = [w.double().reshape(len(w) if per_class else 1, -1) for w in task.w0.values()]
    return torch.cat(parts, 1)


# ---- losses ----


def losses(task: Task, theta: Tensor, data: Data, loss: str = "task", clip: float = 0.0) -> Tensor:
    """Mean losses (swarms, particles) over the client's real examples, each clipped if `clip` is not 0."""
    x, real = inputs(task, data.x), torch.arange(len(data.x)) < data.n
    if loss in PER_CLASS:
        cost = one_vs_all(x.flatten(1), data.y, theta, loss)
    else:
        z = scores(task, weights(task, theta, False), x)
        cost = task.per_example_loss(z, data.y.expand(len(z), -1)).T  # (examples, particles of all swarms)
    if clip:
        cost = cost.nan_to_num(nan=clip, posinf=clip).clamp(0, clip)
    return (torch.where(real[:, None], cost, 0.0).sum(0) / data.n).reshape(theta.shape[:2])


def one_vs_all(x: Tensor, y: Tensor, theta: Tensor, loss: str) -> Tensor:
    """The loss of each example and particle, (examples, classes * particles): is it of the particle's class?"""
    classes, particles, numbers = theta.shape
    flat = theta.reshape(-1, numbers)
    wide = x.shape[1]  # what is left of a particle is its bias, if it has one
    z = x @ flat[:, :wide].T + (flat[:, wide] if numbers > wide else 0.0)
    side = 1.0 - 2.0 * (y[:, None] == torch.arange(classes))  # -1 where the answer is yes
    wrong = (z.reshape(-1, classes, particles) * side.to(z)[:, :, None]).flatten(
        1
    )  # how far on the wrong side
    if loss == "one_vs_all":
        return softplus(wrong)  # -log sigmoid, which never overflows
    return -(torch.sigmoid(-wrong) + _SMALL).log()


def inputs(task: Task, x: Tensor) -> Tensor:
    x = task.pixels.normalise(x) if task.pixels else x
    return x.double() if x.is_floating_point() else x


def scores(task: Task, w: Vec, x: Tensor) -> Tensor:
    """(particles, examples, classes), or (particles, examples) where numbers are predicted."""
    many = len(next(iter(w.values())))
    if linear(task):
        first, *bias = w.values()  # (particles, outputs, features)
        z = x.flatten(1) @ first.flatten(0, 1).T  # one product for all particles
        z = z.reshape(len(x), many, -1).transpose(0, 1) + (bias[0][:, None] if bias else 0.0)
        return z if task.kind == "classes" else z.squeeze(-1)
    if task.dense:
        return torch.vmap(task.predict, in_dims=(0, None))(w, x)
    return torch.stack([task.predict(w.map(lambda a, i: a[i], i), x) for i in range(many)])


def root(task: Task, data: Data) -> Tensor:
    """R' with R'R = A'A / n, where A = [X 1 -y]: all that squared errors of a linear network depend on.

    It is the root of the Gram matrix: a sum of squares loses fewer digits than the form X'X, X'y, y'y does.
    """
    x = inputs(task, data.x).flatten(1)
    bias = [torch.ones(len(x), 1, dtype=torch.float64)] * (len(task.w0) - 1)
    a = torch.cat([x, *bias, -data.y.double()[:, None]], 1)
    a = torch.where((torch.arange(len(x)) < data.n)[:, None], a, 0.0)
    square = torch.zeros(
        a.shape[1], a.shape[1], dtype=torch.float64
    )  # so that few examples give no other shape
    r: Tensor = torch.linalg.qr(torch.cat([a, square]) / data.n.double().sqrt(), mode="r").R
    return r.T.contiguous()


def from_root(r: Tensor, theta: Tensor) -> Tensor:
    """Mean squared errors (swarms, particles); NumPy takes half the time where it may look at the numbers."""
    if stacked(r) or stacked(theta):
        miss = theta.flatten(0, 1) @ r[:-1] + r[-1]  # (particles of all swarms, rows of the root)
        return miss.square().sum(1).reshape(theta.shape[:2])
    loss = np.empty(theta.shape[:2])
    _squares(r.numpy(), theta.numpy(), loss.reshape(-1))
    return torch.from_numpy(loss)


def _squares(r: Array, theta: Array, loss: Array) -> None:
    """The same into `loss`, of all swarms in a row."""
    far = theta.reshape(-1, theta.shape[2]).dot(r[:-1])
    far += r[-1]
    far *= far
    far.dot(_ones(len(r)), out=loss)  # far.sum(1) takes longer


@lru_cache(maxsize=8)
def _ones(many: int) -> Array:
    return np.ones(many)


def told(loss: Tensor) -> Tensor:
    """Losses, and 1 where one is lost; nothing finite if all are, so that the client is left out."""
    fine = loss.isfinite()
    loss = torch.where(fine, loss, torch.where(fine.any(), 0.0, torch.nan))
    return torch.stack([loss, (~fine).double()])


def told_from_root(r: Tensor, theta: Tensor) -> Tensor:
    """`told` of `from_root`, by the shortest way: a swarm of twenty asks this some thousand times a second."""
    if stacked(r) or stacked(theta):
        return told(from_root(r, theta))
    at = theta.numpy()
    both = np.zeros((2, at.shape[0], at.shape[1]))
    loss = both[0].reshape(-1)
    _squares(r.numpy(), at, loss)
    known = math.isfinite(loss.dot(loss))  # all are; a sum takes longer
    return torch.from_numpy(both) if known else told(torch.from_numpy(both[0]))


def stacked(t: Tensor) -> bool:
    """Whether several clients are at work at once, so that nobody may look at the numbers."""
    return bool(_wrapped(t))


def scored(task: Task, theta: Tensor, data: Data, f: Callable[..., Any]) -> Tensor:
    """What any Python function f(scores, y) or f(scores, y, x) says of each particle; for one client, not padded."""
    w, x = weights(task, theta, False), inputs(task, data.x)
    more = (data.x,) if len(signature(f).parameters) > 2 else ()
    z = (task.predict(w.map(lambda a, i: a[i], i), x) for i in range(len(next(iter(w.values())))))
    return torch.tensor([float(f(one, data.y, *more)) for one in z], dtype=torch.float64).reshape(
        theta.shape[:2]
    )


def noise(data: Data, salt: Tensor, shape: torch.Size) -> Tensor:
    """Draws from the Laplace distribution of scale 1."""
    draw = hashes(data.seed, salt + _NOISE, torch.arange(shape.numel())) >> 10
    u = ((draw.double() + 0.5) * 2.0**-52).reshape(shape)  # in (0, 1)
    return (0.5 - u).sign() * (2 * torch.minimum(u, 1 - u)).log()


def fetched(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the current folder are found too."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise ValueError(f"the module {module!r} has no function {function!r}")
    return found  # type: ignore[no-any-return]
