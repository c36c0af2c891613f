"""Federated Swarm Intelligence: the server moves a swarm of weight vectors, and clients answer with losses alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Fuse, Fused, NotNegative, Positive, Share, Talk, Tree, Turn, average, verb
from motet.parts import particle_losses as losses
from motet.parts.searches import PointSearch
from motet.parts.swarm_rules import SearchesByLosses
from motet.parts.swarms import Array, Swarms, UniformDraws


class Swarm(SearchesByLosses):
    """Swarm: particle swarm optimisation of a network's weights, without gradients.

    D. Zeng, "Self-adaptive Federated Swarm Intelligence" (undated; its references end in 2021), Algorithms 1 and 2.
    A particle theta is a whole weight vector. In each epoch every particle proposes a step
    v = alpha (w1 v + w2 R1 (gbest - theta) + (1 - w1 - w2) R2), and takes it if the mean loss over all examples of
    all clients falls. So it does not matter how the examples are divided among clients. alpha doubles when the loss
    of gbest falls, and halves after `patience` failures.
    The paper's regression: particles 20, alpha 100, patience 5. Its digits: loss one_vs_all, w2 0.3, alpha 0.001,
    patience 6. Both: first "unit", and all clients in every epoch.

    Differs from the paper:
    - The server remembers losses of accepted particles. Each message also holds gbest: if its loss has changed, other
      clients have answered (a cohort, or one that failed), and the losses of all particles are computed again.
    - Any network and any loss. Steps are bounded. one_vs_all is numerically stable ("published" is the author's loss).
    - Particles start around the network's initial weights, unless `first` is "unit".
    - A particle may try several candidates in a message. Several swarms may run side by side, each as it would alone.
    As in the author's code: a success does not set the number of failures back, and v is kept where a step is rejected.
    Other rules: conventional PSO ("pso"); CMA-ES ("cma", up to 1,000 weights) and separable natural evolution
    strategies ("nes"), which sample around a mean with step length alpha; and "surrogate" (up to 40 weights), which
    fits a quadratic function to the losses so far and goes to its minimum: for squared errors of a linear network that
    is least squares, since (p + 1)(p + 2) / 2 losses tell all of X'X, X'y and y'y of p weights.
    Conventional PSO with inertia 0.73 and attractions 1.5 is rule "pso", alpha 3.72, w1 0.2, w2 0.4, adapt false.

    A particle whose loss is not finite at some client does not move. A client without any finite loss is left out.
    Noise has Laplace's distribution with scale clip / (n epsilon). epsilon is spent on each loss, and an epoch sends
    particles * tries + 1 losses. The noise follows from the run's seed, which the server knows: it shows the effect of
    noise on the result, and protects nobody.
    """

    beyond_budget = "losses of models on rows leave; a site has noise for them (policy.noise)"

    loss: str = "task"  # task (its own loss), one_vs_all, published, or module:function(scores, y) -> number
    particles: Count = 20  # in a swarm (S); one_vs_all has a swarm for each class
    swarms: Count = 1  # independent swarms side by side; the best one is the model
    tries: Count = 1  # candidates of a particle in each message; the best one counts
    stretch: Count = 10  # epochs in a round
    rule: Literal["fsi", "pso", "cma", "nes", "surrogate"] = "fsi"  # see above; fsi is the paper's
    w1: Share = 0.0  # share of the previous velocity
    w2: Share = 0.3  # share of the attraction to the best particle; 1 - w1 - w2 is the share of the mutation
    alpha: Positive = 0.1  # initial step length
    adapt: bool = True  # double alpha when the best loss falls, halve it after `patience` failures
    patience: Count = 6  # failures (epochs without a lower best loss) after which alpha is halved
    consecutive: bool = False  # a success sets the number of failures back to 0
    alpha_cap: NotNegative = 0.0  # largest alpha; 0 = any
    bound: NotNegative = 0.0  # largest weight of a particle; 0 = any
    first: Literal["net", "unit"] = "net"  # start around the network's initial weights, or in [0, 1)
    spread: NotNegative = 0.1  # first "net" only: largest initial distance in each weight
    epsilon: NotNegative = 0.0  # of the noise on one loss; 0 = no noise
    clip: NotNegative = 0.0  # largest loss of an example; 0 = any; noise needs it
    trail: Annotated[int, ">= 0"] = 0  # record the best particles every so many epochs; 0 = never

    def remarks(self) -> list[str]:
        if self.rule != "surrogate" or ":" not in str(self.loss):
            return []
        said = f"rule=surrogate fits a quadratic function to the losses of {self.loss}"
        return [
            f"{said}: if it is not smooth, as 1 - AUC is not, this is slow and finds little; rule=cma does not need it"
        ]

    def start(self, turn: Turn) -> Tree | Talk:
        self.check()
        w0 = losses.initial_particle(self.task, self.per_class)  # (classes or 1, numbers)
        draws = UniformDraws.seeded(turn.seed, len(w0) if self.per_class else self.swarms)
        theta = self.first_points(w0, draws)
        loss, lost = yield from self.ask(theta.numpy(), 0, turn)
        return self.with_best(self.begun(turn.seed, theta, loss, lost, draws))

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        moving = self.moving(s)
        yield from self.optimise(moving, turn)
        return self.with_best(moving.state())

    def optimise(self, swarms: Swarms | PointSearch, turn: Turn) -> Talk:
        many = self.particles * self.tries
        while swarms.epochs_left:
            tried = swarms.candidates()  # theta + v of all particles, then gbest
            new, lost = yield from self.ask(tried, swarms.epoch, turn, self.fuse(swarms))
            if not swarms.epochs_left:  # the engine has done all epochs of the round at once
                return
            if not self.epsilon and swarms.others_answered(new[..., many]):
                both = np.concatenate([tried[..., :many, :], swarms.theta], -2)
                new, lost = yield from self.ask(both, swarms.epoch, turn)
                swarms.replace_losses(new[..., many:])
            swarms.excluded += lost
            swarms.accept(new[..., :many])  # theta + v where the loss falls; then alpha

    def ask(
        self, theta: Array, epoch: int, turn: Turn, fuse: Fuse | None = None
    ) -> Generator[Any, Any, tuple[Array, int]]:
        """Mean losses (swarms, particles), infinite where not finite at some client; and how many of these."""
        sent = {"theta": torch.from_numpy(theta)} | ({"epoch": torch.tensor(epoch)} if self.epsilon else {})
        computed_by = self.loss_by_function if ":" in self.loss else self.loss_of_particles
        answer = yield average(computed_by, turn.cohort, send=sent, fuse=fuse)
        if isinstance(answer, Fused):
            return np.empty(0), 0
        loss, flags = answer.numpy()
        return np.where(flags > 0, np.inf, loss), int(np.count_nonzero(flags))

    @verb
    def loss_of_particles(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        if isinstance(keep, Tensor):
            return losses.flagged_squared_errors(keep, sent["theta"]), keep
        loss = losses.mean_losses(self.task, sent["theta"], data, self.loss, self.clip)
        return losses.reply(loss, self.clip / data.n, self.epsilon, sent, data), keep

    @verb(solo=True)
    def loss_by_function(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        loss = losses.function_losses(self.task, sent["theta"], data, self.loss, self.clip)
        return losses.reply(loss, self.clip, self.epsilon, sent, data), keep

    def global_model(self, s: Tree) -> Tree:
        return s["best"]

    def download(self, s: Tree, client: str) -> Tree:
        return s["best"]
