"""FedSoft: a client belongs to several clusters, each by a share of its examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.client.task import predicted
from motet.core import NotNegative, Positive, Talk, Tree, Turn, verb
from motet.methods.ifca import IFCA
from motet.parts.personal_parts import OwnModel
from motet.parts.several_models import each_times, mixed, several_starts
from motet.vec import Vec

_EQUAL = 0.1  # losses of an example that differ by less share it: rounding does not choose a cluster
_APART = (
    0.1  # share of weights whose signs differ at the start: mixtures of models that are far apart are poor
)


class FedSoft(OwnModel, IFCA):
    """FedSoft: a client belongs to several clusters, each by the share of its examples that its model fits best.

    Ruan & Joe-Wong 2022, "FedSoft: Soft Clustered Federated Learning with Proximal Local Updating", Algorithm 1. A
    client's model w is trained by f(w) + lam/2 sum_s u_s |w - c_s|^2, where u_s is its share of examples for which the
    model c_s has the least loss, and c_s is the mean of clients' models by u_s and numbers of examples.
    Differs from the paper: shares are measured in every round; an example whose losses are about the same in several
    clusters is shared by them; w starts from the mixture of the c_s; a client
    sends its shares inside of a mean, as in IFCA. k 1 is FedProx with mu = lam.
    """

    strength = "lam"
    lam: NotNegative = 0.01  # pull of a client's model to the clusters' (lambda)
    smooth: Positive = 0.01  # least share of a client in any cluster (sigma)

    def penalty(self) -> float:
        return super().penalty() + self.lam

    def start(self, turn: Turn) -> Tree | Talk:
        return several_starts(self.task.w0, self.k, _APART)

    def personal(self, models: Tree, own: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return super().personal(mixed(models, self.shares(models, data)), own, data)

    @verb
    def train(self, models: Tree, own: Vec, data: Data) -> tuple[Tree, Tree]:
        u = self.shares(models, data)
        mixture = mixed(models, u)
        w = self.descend(self.near, mixture, data, given=mixture)
        return (each_times(w, u), u), w

    def near(self, w: Vec, batch: Batch, mixture: Vec) -> Tensor:
        """sum_s u_s |w - c_s|^2 is the squared distance to the mixture, but for a constant."""
        return self.task.loss(w, batch) + self.lam / 2 * (w - mixture).sq()

    def shares(self, models: list[Vec], data: Data) -> Tensor:
        """u_s, at least `smooth` and 1 in all."""
        batch, own = data.all, [self.task.weights_at_home(c, data) for c in models]
        scores = [predicted(partial(self.task.predict, c), batch) for c in own]
        losses = torch.stack([self.task.per_example_loss(z, batch.y, batch.live) for z in scores], -1)
        best = (-losses / _EQUAL).softmax(-1)  # one for the least loss, unless others are about as small
        u = (batch.live @ best / batch.live.sum()).clamp(min=self.smooth)
        return u / u.sum()
