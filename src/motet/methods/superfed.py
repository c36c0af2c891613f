"""SuPerFed: a client's own model and the shared one are trained so that all mixtures between them are good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.client.batchnorm import weights_of, with_statistics_of
from motet.core import Count, NotNegative, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.games import local_loss_and_accuracy
from motet.parts.several_models import other_start
from motet.vec import Vec

_MIXTURES = 6  # among which a client chooses: 0, 0.2, …, 1


class SuPerFed(FedAvg):
    """SuPerFed: a client's own model and the shared one are trained so that all mixtures between them are good.

    Hahn et al. 2022, "Connecting Low-Loss Subspace for Personalized Federated Learning", Algorithms 1 and 2
    (model mixing): a client trains the shared model w and its own v by f((1 - lambda) w + lambda v) with a random
    lambda, plus mu/2 times the squared distance of w to what it was sent and nu times the squared cosine of w and v.
    For the first rounds it trains w alone. It uses the mixture that is best on its validation examples.
    Differs from the paper: lambda is drawn once for each client and round; v starts with weights of other signs, where
    the paper draws other ones.
    """

    beyond_budget = "losses on validation rows choose the model"

    strength = "nu"
    first: Count = 5  # rounds in which a client trains the shared model alone (L)
    mu: NotNegative = 0.01  # pull of the shared model to what was sent
    nu: NotNegative = 1.0  # weight of the squared cosine that keeps both models apart

    def penalty(self) -> float:
        return super().penalty() + self.mu

    def join(self, data: Data) -> Tree:
        return {"v": other_start(self.task.w0, 1), "trained": torch.tensor(0.0)}

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        mixes = (data.round >= self.first).to(torch.float32)
        lam = mixes * data.chance(1, salt=1)[0]
        both = self.descend(self.on_the_way, Vec.join(w=w, v=keep["v"]), data, given=(w, lam, mixes))
        w, v = both.split("w", "v")
        return w, {"v": v, "trained": keep["trained"].maximum(mixes)}

    def on_the_way(self, both: Vec, batch: Batch, given: tuple[Vec, Tensor, Tensor]) -> Tensor:
        (w, v), (sent, lam, mixes) = both.split("w", "v"), given
        a, b = weights_of(w), weights_of(v)
        cosine = a.dot(b) ** 2 / (a.sq() * b.sq()).clamp(min=1e-12)
        pulls = self.mu / 2 * (w - sent).sq() + mixes * self.nu * cosine
        return self.task.loss(mixture(w, v, lam), batch) + pulls

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        """The best mixture; the shared model until the client has trained its own."""
        best, least = w, local_loss_and_accuracy(self.task, w, data)[0]
        for j in range(1, _MIXTURES):
            mixed = mixture(w, keep["v"], j / (_MIXTURES - 1))
            loss = local_loss_and_accuracy(self.task, mixed, data)[0]
            best = mixed.where((loss < least) & (keep["trained"] > 0), best)
            least = loss.minimum(least)
        return partial(self.task.predict, best)


def mixture(w: Vec, v: Vec, lam: float | Tensor) -> Vec:
    """w learns the mixture's statistics of BatchNorm."""
    return with_statistics_of((1 - lam) * w + lam * v, w)
