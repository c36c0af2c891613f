"""IFCA: k models, and each client trains the one that fits its own examples best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Method, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.groups_around import ChosenGroups
from motet.parts.several_models import each_times, least_of, losses_of, mixed, several_starts, shared_means
from motet.vec import Vec


class IFCA(FedAvg):
    """IFCA: the server keeps k models, and each client trains the one that fits its own examples best.

    Ghosh et al. 2020, "An Efficient Framework for Clustered Federated Learning", Algorithm 1 with model averaging;
    HypCluster (Mansour et al. 2020) is the same idea. A client finds the model of least loss on its training examples
    in every round, so that clients may change clusters.
    Differs from the paper: a client sends its choice inside of a mean (zeros for all other models), so that the server
    learns how many chose a model and not who; k times as much is sent. Models are averaged by numbers of examples.
    The k models start with weights of other signs. k 1 is FedAvg.
    """

    replies_updates = False
    beyond_budget = "losses of all models on the rows choose what leaves"

    strength = "k"
    k: Count = 3  # number of models, and of clusters

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same groups around another method; the server then learns which client is in which."""
        return ChosenGroups.made(base, FedAvg, cls.__name__)

    def start(self, turn: Turn) -> Tree | Talk:
        return several_starts(self.task.w0, self.k)

    def round(self, models: Tree, turn: Turn) -> Tree | Talk:
        sums, shares = yield average(self.train, turn.cohort, send=models)
        return shared_means(models, sums, shares)

    def global_model(self, models: list[Vec]) -> None:
        return None

    @verb
    def train(self, models: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        s = self.choice(models, data)
        return (each_times(self.descend(self.task.loss, mixed(models, s), data), s), s), keep

    def choice(self, models: list[Vec], data: Data) -> Tensor:
        own = [self.task.weights_at_home(w, data) for w in models]
        return least_of(losses_of(self.task, own, data.all), data.chance(self.k, salt=1))

    def personal(self, models: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, mixed(models, self.choice(models, data)))

    def trained_model(self, sent: Tree, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, mixed(reply[0], torch.ones(self.k)))
