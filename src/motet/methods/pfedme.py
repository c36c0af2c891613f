"""pFedMe: personal models from Moreau envelopes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.func import grad

from motet.client import Batch, Data
from motet.client.batchnorm import with_statistics_of
from motet.client.optimisers import Optimiser
from motet.core import Count, MethodUnfit, Positive, Rate, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import own_or
from motet.parts.step_lengths import stepped
from motet.vec import Vec


class PFedMe(FedAvg):
    """pFedMe: a client's model is the best one near a shared model, and the shared model moves to where clients went.

    Dinh et al. 2020, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1. For each
    minibatch, theta takes K steps towards argmin f(theta) + lam/2 |theta - w_i|^2, and then
    w_i <- w_i - eta lam (w_i - theta), which is a gradient step on the envelope: `descend` takes it.
    Differs from the paper: R is counted in epochs. As in the authors' code, theta starts each round at
    the received w and goes on from minibatch to minibatch. decay and clip are of theta's steps: those of w_i are
    steps on the envelope, which has neither.
    """

    beyond_budget = "each step takes many gradients of the same rows"

    strength = "lam"
    lr: Positive = 0.5  # learning rate of the shared model (eta); eta lam should stay below 1
    lam: Positive = 1.0  # pull of personal models to the shared one (lambda); the paper: 15 to 30, eta 0.005
    inner: Count = 5  # steps of the personal model for each minibatch (K)
    inner_lr: Rate = 0.1  # learning rate of these steps; auto = safe for network and data
    beta: Positive = 1.0  # step of the server towards the mean of the replies; 1 = it takes the mean

    def penalty(self) -> float:
        return super().penalty() + self.lam

    def check(self) -> None:
        super().check()
        if self.optimiser != "sgd":
            raise MethodUnfit(
                f"method.optimiser is {self.optimiser}, and pfedme's steps are gradient steps on an envelope.\n"
                "hint: method.optimiser=sgd"
            )
        if self.momentum:
            raise MethodUnfit(
                f"method.momentum is {self.momentum:g}, and pfedme's personal model is what its last steps lead to, "
                "which momentum would go past.\nhint: method.momentum=0"
            )

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        mean = yield average(self.train, turn.cohort, send=w, weights=dict.fromkeys(turn.cohort, 1.0))
        return stepped(w, mean, self.beta)

    def join(self, data: Data) -> Tree:
        return self.task.w0

    @verb
    def train(self, w: Vec, theta: Vec, data: Data) -> tuple[Tree, Tree]:
        start, plain = Vec.join(w=w, theta=w), {"decay": 0.0, "clip": None}
        both = self.descend(self.envelope, start, data, step=self.step, **plain)
        w, theta = both.split("w", "theta")
        return with_statistics_of(w, theta), theta  # batches pass through theta

    def envelope(self, both: Vec, batch: Batch) -> Tensor:
        """Its gradient is lam (w_i - theta) in w_i, and in theta the way that theta has gone."""
        w, theta = both.split("w", "theta")
        steps = Optimiser(decay=self.decay, clip=self.clip or None)
        held, near = (v.map(lambda a, _: a.detach()) for v in (w, theta))
        for _ in range(self.inner):
            slope, _ = steps.direction(grad(self.tied)(near, batch, held), near, ())
            near = near - self.inner_lr * slope
        near = near.map(lambda a, _: a.detach())
        return self.lam / 2 * (w - near).sq() + (theta - near).sq() / 2

    def tied(self, theta: Vec, batch: Batch, w: Vec) -> Tensor:
        return self.task.loss(theta, batch) + self.lam / 2 * (theta - w).sq()

    def step(self, both: Vec, g: Vec, given: Tree, lr: Tensor) -> Vec:
        (w, theta), (dw, way) = both.split("w", "theta"), g.split("w", "theta")
        return Vec.join(w=w - lr * dw, theta=theta - way)

    def personal(self, w: Vec, theta: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, own_or(self.task, theta, w))
