"""Fed-ROD: one body, a generic head that pretends classes were balanced, and a personal head on top.

Chen & Chao 2022, "On Bridging Generic and Personalized Federated Learning for Image Classification",
the linear variant. The generic head g and the body f learn from cross-entropy with log n_c added to
the scores (balanced softmax); the personal head h_i learns the rest, with f and g held still. The
server averages f and g; h_i starts as a copy of g's start and stays at home.
A network of one layer has no body: the heads then see the examples themselves. Targets that are
numbers have no classes to balance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import Tree, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec

_ABSENT = -1e9  # the logarithm of no example, kept finite


class FedROD(FedAvg):
    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    @verb
    def train(self, w: Vec, h: Vec, data: Data) -> tuple[Tree, Tree]:
        both = Vec(w | {f"own {k}": v for k, v in h.items()})
        both = self.descend(self.two_losses, both, data, given=self.prior(data))
        return both.pick(w), Vec({k: both[f"own {k}"] for k in h})

    def two_losses(self, both: Vec, batch: Batch, prior: Tensor) -> Tensor:
        w = Vec({k: v for k, v in both.items() if not k.startswith("own ")})
        h = Vec({k: both[f"own {k}"] for k in self.task.head})
        generic, z = self.task.predict_from(w, batch.x)
        personal = generic.detach() + self.task.top(h, z.detach())
        losses = self.task.per_example_loss(generic + prior, batch.y) + self.task.per_example_loss(
            personal, batch.y
        )
        return batch.mean(losses)

    def prior(self, data: Data) -> Tensor:
        """log n_c of this client."""
        if self.task.kind == "numbers":
            return torch.zeros(())
        count = torch.zeros(self.task.outputs).scatter_add(0, data.y, data.all.live)
        return torch.where(count > 0, torch.log(count.clamp(min=1)), _ABSENT)

    def personal(self, w: Vec, h: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.both_heads, w, h)

    def both_heads(self, w: Vec, h: Vec, x: Tensor) -> Tensor:
        generic, z = self.task.predict_from(w, x)
        scores: Tensor = generic + self.task.top(h, z)
        return scores
