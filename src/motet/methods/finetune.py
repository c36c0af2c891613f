"""FineTune: FedAvg, and each client trains the global model further before it uses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.core import Count, Tree
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FineTune(FedAvg):
    """FineTune: FedAvg, and each client trains the global model further on its own examples before it uses it.

    A baseline of ours, the simplest personalisation; Yu et al. 2020, "Salvaging Federated Learning by Local
    Adaptation", study it and related methods. Only FedAvg's replies leave a client.
    """

    beyond_budget = "rows train a model anew at every score"

    strength = "tune"
    tune: Count = 5  # epochs of further training

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        tuned = self.descend(self.task.loss, w, data, epochs=self.tune, lr=self.lr)  # whatever the schedule
        return partial(self.task.predict, tuned)

    def epochs_at_evaluation(self) -> int:
        return self.tune

    def trained_model(self, w: Vec, reply: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, reply)
