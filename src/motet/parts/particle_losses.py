"""Losses of many particles on one client's examples, in double precision and all at once.

A particle is a weight vector; particles come as (swarms, particles, numbers). Losses of networks go through the task.
A linear network is one product of matrices, and its squared errors need the examples only once (`gram_root`).

Knows a task and one client's examples. Does not know how particles move. Works under vmap, except `function_losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from motet.client import Data, Task
from motet.client.data import hashes
from motet.core import Method, Tree
from motet.settings import import_named
from motet.vec import Vec

Array = np.ndarray[Any, Any]
PER_CLASS = ("one_vs_all", "published")  # losses with a swarm for each class
_NOISE = 1 << 42  # salt of the noise, far from those of other draws
_under_vmap = torch._C._functorch.is_functorch_wrapped_tensor  # then values of tensors cannot be read
_SMALL = 1e-3  # what the author's notebook adds inside its logarithms


class SendsLosses(Method):
    """What an organisation must know of a method whose clients answer with losses at points that the server chooses:
    without noise, their second differences are the rows."""

    measuring = ("loss_of_particles", "loss_by_function")

    if TYPE_CHECKING:  # these are the method's
        loss: str
        clip: float
        stretch: int
        particles: int
        tries: int

    def unfit_loss(self) -> str:
        return unfit_loss(self.task, self.loss, self.clip)

    def unfit_weights(self) -> str:
        return unfit_weights(self.loss, self.clip)

    def most_asks(self) -> int:
        return 2 * self.stretch

    def numbers_measured(self, verb: str, reply: int, rounds: int) -> int:
        """An epoch asks for losses of candidates and of gbest; if that one has changed, as noise changes it, then for
        those of candidates and of all particles."""
        candidates = self.particles * self.tries
        once_more = -(-reply * (candidates + self.particles) // (candidates + 1))
        return reply + rounds * self.stretch * (reply + once_more)

    def bounded(self, most: float) -> SendsLosses:
        return replace(self, clip=min(self.clip or most, most))

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Tensor]) -> Tree:
        loss, flags = reply
        noise = draw(loss.shape).flatten()[first_equal(sent["theta"])].reshape(loss.shape)
        return torch.stack([loss + self.clip * noise, flags])


def first_equal(theta: Tensor) -> Tensor:
    """(swarms * particles,) for each particle the place of the first one that is equal to it.

    >>> first_equal(torch.tensor([[[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]])).tolist()
    [0, 1, 0]
    """
    rows = theta.flatten(0, 1).numpy() + 0.0  # -0 is 0
    _, first, place = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return torch.from_numpy(first[place.reshape(-1)])


def unfit(task: Task, loss: str, swarms: int, clip: float, epsilon: float) -> list[str]:
    """Why a task cannot be trained by swarms on this loss; empty if it can."""
    wrong = []
    if ":" in loss:
        try:
            import_named(loss, ValueError)
        except (ImportError, ValueError) as e:
            wrong.append(f"loss is {loss!r}: {e}")
    elif loss not in ("task", *PER_CLASS):
        wrong.append(f"loss is {loss!r}.\nhint: task, {', '.join(PER_CLASS)} or module:function")
    if loss in PER_CLASS and not (task.kind == "classes" and is_linear(task)):
        wrong.append(
            f"loss {loss!r} needs classes and a network of one linear layer.\nhint: net.name=logistic"
        )
    if loss in PER_CLASS and swarms > 1:
        wrong.append(
            f"loss {loss!r} has one swarm for each class, and method.swarms is {swarms}.\n"
            "hint: method.swarms=1, and raise method.particles"
        )
    if epsilon and not clip:
        wrong.append("noise needs a bound on the loss of an example.\nhint: set method.clip, say to 5")
    if task.statistics:
        wrong.append("a swarm cannot move the batch statistics of the network.\nhint: net.norm=group")
    return wrong


def unfit_loss(task: Task, loss: str, clip: float) -> str:
    """Why the task's own loss and the swarm's do not go together; "" if they do."""
    own = task.criterion
    if loss != "task" and not own.usual:
        return f"method.loss is {loss!r}, so that {own.given} would train nothing.\nhint: method.loss=task"
    if clip and own.name == "cox":
        return (
            "its bound holds for losses of single rows, and Cox's likelihood compares rows.\n"
            "hint: method.clip=0 method.epsilon=0"
        )
    return ""


def unfit_weights(loss: str, clip: float) -> str:
    """Why the swarm's loss cannot count rows by weights; "" if it can."""
    if ":" in loss:
        return f"method.loss is {loss!r}, which is not given them.\nhint: method.loss=task"
    if clip:
        return "its bound holds for losses of rows that count alike.\nhint: method.clip=0 method.epsilon=0"
    return ""


def is_linear(task: Task) -> bool:
    """Whether the network is one linear layer; layers that only reshape do not count."""
    kinds = [type(m) for m in task.net.modules() if not isinstance(m, nn.Sequential | nn.Flatten)]
    return kinds == [nn.Linear]


def weights(task: Task, theta: Tensor, per_class: bool) -> Vec:
    """Particles as weights with a first axis of particles; per class, the i-th ones of all swarms make one network."""
    # (particles, classes, numbers) if per class
    rows = theta.transpose(0, 1) if per_class else theta.flatten(0, 1)
    sizes = [w[0].numel() if per_class else w.numel() for w in task.w0.values()]
    parts = torch.split(rows, sizes, -1)
    return Vec({k: p.reshape(len(p), *w.shape) for (k, w), p in zip(task.w0.items(), parts, strict=True)})


def initial_particle(task: Task, per_class: bool) -> Tensor:
    """The network's initial weights as (swarms, numbers); one swarm unless per class."""
    parts = [w.double().reshape(len(w) if per_class else 1, -1) for w in task.w0.values()]
    return torch.cat(parts, 1)


def best_weights(task: Task, gbest: Tensor, loss: Tensor, per_class: bool) -> Vec:
    """The network of the best particles (swarms, 1, numbers): of the best swarm or, per class, of all swarms."""
    chosen = gbest if per_class else gbest[loss.argmin()][None]
    found = weights(task, chosen, per_class)
    return Vec({k: w[0].to(task.w0[k].dtype) for k, w in found.items()})


# ---- losses ----


def mean_losses(task: Task, theta: Tensor, data: Data, loss: str = "task", clip: float = 0.0) -> Tensor:
    """Mean losses (swarms, particles) over the client's examples by their weights, each clipped if `clip` is not 0."""
    x = inputs(task, data.x)
    real = torch.arange(len(x)) < data.n  # what follows the real rows is padding
    if loss in PER_CLASS:
        cost = one_vs_all(x.flatten(1), data.y, theta, loss)
    else:
        z = scores(task, weights(task, theta, False), x)
        y, live = (v.expand(len(z), -1) for v in (data.y, real.to(z)))
        cost = task.per_example_loss(z, y, live).T  # (examples, particles of all swarms)
    if clip:
        cost = cost.nan_to_num(nan=clip, posinf=clip).clamp(0, clip)
    if data.weight is not None:
        cost = cost * data.weight.to(cost)[:, None]
    return (torch.where(real[:, None], cost, 0.0).sum(0) / data.n).reshape(theta.shape[:2])


def one_vs_all(x: Tensor, y: Tensor, theta: Tensor, loss: str) -> Tensor:
    """Logistic losses (examples, classes * particles): particles of swarm c separate class c from all others."""
    classes, particles, numbers = theta.shape
    flat = theta.reshape(-1, numbers)
    wide = x.shape[1]  # a number of the particle beyond these is its bias
    z = x @ flat[:, :wide].T + (flat[:, wide] if numbers > wide else 0.0)
    side = 1.0 - 2.0 * (y[:, None] == torch.arange(classes))  # -1 for examples of the class
    distance = z.reshape(-1, classes, particles) * side.to(z)[:, :, None]
    wrong = distance.flatten(1)  # how far on the wrong side
    if loss == "one_vs_all":
        return softplus(wrong)  # -log sigmoid, which never overflows
    return -(torch.sigmoid(-wrong) + _SMALL).log()


def inputs(task: Task, x: Tensor) -> Tensor:
    x = task.pixels.normalise(x) if task.pixels else x
    return x.double() if x.is_floating_point() else x


def scores(task: Task, w: Vec, x: Tensor) -> Tensor:
    """(particles, examples, classes), or (particles, examples) where numbers are predicted."""
    many = len(next(iter(w.values())))
    if is_linear(task):
        first, *bias = w.values()  # (particles, outputs, features)
        z = x.flatten(1) @ first.flatten(0, 1).T  # one product for all particles
        z = z.reshape(len(x), many, -1).transpose(0, 1) + (bias[0][:, None] if bias else 0.0)
        return z if task.kind == "classes" else z.squeeze(-1)
    if task.dense:
        return torch.vmap(task.predict, in_dims=(0, None))(w, x)
    return torch.stack([task.predict(w.map(lambda a, i: a[i], i), x) for i in range(many)])


def gram_root(task: Task, data: Data) -> Tensor:
    """R' with R'R = A'A / n, where A = [X 1 -y]: squared errors of a linear network depend on nothing else. Rows
    with weights are multiplied by their roots.

    |R (theta, 1)|^2 is the mean squared error. It loses fewer digits than X'X, X'y and y'y would.
    """
    x = inputs(task, data.x).flatten(1)
    bias = [torch.ones(len(x), 1, dtype=torch.float64)] * (len(task.w0) - 1)
    a = torch.cat([x, *bias, -data.y.double()[:, None]], 1)
    if data.weight is not None:
        a = a * data.weight.double().sqrt()[:, None]
    a = torch.where((torch.arange(len(x)) < data.n)[:, None], a, 0.0)
    wide = a.shape[1]
    square = torch.zeros(wide, wide, dtype=torch.float64)  # so that R is square with few examples too
    r: Tensor = torch.linalg.qr(torch.cat([a, square]) / data.n.double().sqrt(), mode="r").R
    return r.T.contiguous()


def squared_errors(r: Tensor, theta: Tensor) -> Tensor:
    """Mean squared errors (swarms, particles) from a client's `gram_root`."""
    miss = theta.flatten(0, 1) @ r[:-1] + r[-1]  # (particles of all swarms, rows of the root)
    return miss.square().sum(1).reshape(theta.shape[:2])


def flagged(loss: Tensor) -> Tensor:
    """(2, swarms, particles): losses, 0 where they are not finite; and flags, 1 where they are not finite.

    If no loss is finite, all are nan: then the engine leaves the client out.
    """
    finite = loss.isfinite()
    loss = torch.where(finite, loss, torch.where(finite.any(), 0.0, torch.nan))
    return torch.stack([loss, (~finite).double()])


def reply(loss: Tensor, sensitivity: float | Tensor, epsilon: float, sent: Any, data: Data) -> Tensor:
    """`flagged` losses with Laplace noise, unless epsilon is 0; sensitivity: what one example can change of a loss."""
    if epsilon:
        loss = loss + sensitivity / epsilon * laplace(data, sent["epoch"], loss.shape)
    return flagged(loss)


def flagged_squared_errors(r: Tensor, theta: Tensor) -> Tensor:
    """`flagged(squared_errors(r, theta))`. NumPy takes a third of the time, where values can be read.

    A client with few examples answers this some thousand times a second.
    """
    if _under_vmap(r) or _under_vmap(theta) or not r.is_cpu:
        return flagged(squared_errors(r, theta))
    root, at = r.numpy(), theta.numpy()
    both = np.zeros((2, at.shape[0], at.shape[1]))
    loss = both[0].reshape(-1)  # a view
    miss = at.reshape(-1, at.shape[2]).dot(root[:-1])
    miss += root[-1]
    miss *= miss
    miss.dot(_ones(len(root)), out=loss)  # sums of rows; miss.sum(1) takes longer
    finite = math.isfinite(loss.dot(loss))  # all of them
    return torch.from_numpy(both) if finite else flagged(torch.from_numpy(both[0]))


@lru_cache(maxsize=8)
def _ones(many: int) -> Array:
    return np.ones(many)


def function_losses(task: Task, theta: Tensor, data: Data, name: str, clip: float = 0.0) -> Tensor:
    """What a Python function f(scores, y) or f(scores, y, x) returns for each particle; for one client, not padded."""
    f, w, x = import_named(name, ValueError), weights(task, theta, False), inputs(task, data.x)
    more = (data.x,) if len(signature(f).parameters) > 2 else ()
    z = (task.predict(w.map(lambda a, i: a[i], i), x) for i in range(len(next(iter(w.values())))))
    loss = torch.tensor([float(f(one, data.y, *more)) for one in z], dtype=torch.float64)
    return (loss.clamp(0, clip) if clip else loss).reshape(theta.shape[:2])


def laplace(data: Data, salt: Tensor, shape: torch.Size) -> Tensor:
    """Draws from the Laplace distribution of scale 1."""
    draw = hashes(data.seed, salt + _NOISE, torch.arange(shape.numel())) >> 10
    u = ((draw.double() + 0.5) * 2.0**-52).reshape(shape)  # in (0, 1)
    return (0.5 - u).sign() * (2 * torch.minimum(u, 1 - u)).log()
