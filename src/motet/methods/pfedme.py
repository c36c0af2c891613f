"""pFedMe: every client's model is the best one near a shared one, which learns from where they went.

Dinh et al. 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1. For each
minibatch, theta goes K steps towards argmin f(theta) + lam/2 |theta - w_i|^2, and then
w_i <- w_i - eta lam (w_i - theta), which is a step down the envelope's slope: `descend` takes it.
Differs from the paper: R is counted in epochs. As in the authors' code, theta starts each round at
the received w and goes on from minibatch to minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.func import grad

from motet.client import Batch, Data
from motet.core import Count, Positive, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class PFedMe(FedAvg):
    lr: Positive = 0.5  # of the shared model (eta); eta lam should stay below 1
    lam: Positive = 1.0  # how near personal models are held (lambda); the paper has 15 to 30, with eta 0.005
    inner: Count = 5  # steps of the personal model for each minibatch (K)
    inner_lr: Positive = 0.1  # their length
    beta: Positive = 1.0  # how far the server goes to the mean of the replies

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        mean = yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0))
        return w + self.beta * (mean - w)

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, w: Vec, theta: Vec, data: Data) -> tuple[Tree, Tree]:
        both = self.descend(self.envelope, double(w, w), data, step=self.step)
        return halves(both)

    def envelope(self, both: Vec, batch: Batch) -> Tensor:
        """Its slope is lam (w_i - theta) in w_i, and the way theta has gone in theta."""
        w, theta = halves(both)
        held, near = (v.map(lambda a, _: a.detach()) for v in (w, theta))
        for _ in range(self.inner):
            near = near - self.inner_lr * grad(self.tied)(near, batch, held)
        near = near.map(lambda a, _: a.detach())
        return self.lam / 2 * (w - near).sq() + (theta - near).sq() / 2

    def tied(self, theta: Vec, batch: Batch, w: Vec) -> Tensor:
        loss: Tensor = self.task.loss(theta, batch)
        return loss + self.lam / 2 * (theta - w).sq()

    def step(self, both: Vec, g: Vec, given: Tree, lr: Tensor) -> Vec:
        (w, theta), (dw, way) = halves(both), halves(g)
        return double(w - lr * dw, theta - way)

    def personal(self, w: Vec, theta: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, theta)


def double(w: Vec, theta: Vec) -> Vec:
    """Two models as one vector."""
    return Vec({f"w {k}": v for k, v in w.items()} | {f"theta {k}": v for k, v in theta.items()})


def halves(both: Vec) -> tuple[Vec, Vec]:
    parts = [{k.split(" ", 1)[1]: v for k, v in both.items() if k.startswith(p)} for p in ("w ", "theta ")]
    return Vec(parts[0]), Vec(parts[1])
