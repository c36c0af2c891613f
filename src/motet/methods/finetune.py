"""FineTune: FedAvg's model, trained on at home before it is used.

The plainest personalisation there is; Yu et al. 2020, "Salvaging Federated Learning by Local
Adaptation", study it and its kin. Nothing but FedAvg's replies leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Data
from motet.core import Count, Tree
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FineTune(FedAvg):
    tune: Count = 5  # epochs trained on at home

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, self.descend(self.task.loss, w, data, epochs=self.tune))

    def trained_model(self, w: Vec, reply: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, reply)
