"""kNN-Per: a global model, and at each client its nearest neighbours among the client's own examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from motet.client import Data
from motet.core import Count, Positive, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.features import seen_by_head
from motet.parts.personal_parts import refuse_without_linear_head, without_classes
from motet.vec import Vec

_SHARES = torch.linspace(0, 1, 11)  # of the neighbours, among which a client chooses
_LEAST = 1e-4  # probability of a class, so that its logarithm stays finite


class KNNPer(FedAvg):
    """kNN-Per: FedAvg's model, mixed at each client with the classes of nearest neighbours among its own examples.

    Marfoq et al. 2022, "Personalized Federated Learning through Local Memorization", Algorithm 1: a client stores
    features and classes of its training examples. A new example's neighbours vote with exp(-distance), and the
    votes are mixed with the model's probabilities. Each client chooses the share of the votes on validation examples,
    so that validation scores are a little better than they should be.
    Differs from the paper: distances are divided by `scale` times the mean distance of neighbours, so that they do not
    depend on the network. A client without validation examples takes half of each.
    A personal model holds features of the client's rows: it is the client's own, and nothing of it is sent.
    """

    beyond_budget = "features and targets of all rows are stored in the model"

    strength = "scale"
    neighbours: Count = 10  # nearest neighbours that vote (k)
    scale: Positive = 1.0  # a neighbour's vote is exp(-distance / (scale * mean distance))

    def check(self) -> None:
        super().check()
        refuse_without_linear_head(self, "compares features that the last layer sees")

    def unfit_loss(self) -> str:
        return without_classes(self, "neighbours vote for classes")

    @verb(solo=True)  # a store has as many rows as the client: clients cannot be stacked
    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        many, w = int(data.n), self.task.weights_at_home(w, data)
        z = seen_by_head(self.task, w, data)
        store = {"z": z.x[:many], "y": data.y[:many], "live": data.live[:many]}
        return partial(self.mixed, w, store, self.chosen_share(w, store, data))

    def chosen_share(self, w: Vec, store: Tree, data: Data) -> Tensor:
        """The share of votes with the least validation loss."""
        if not len(data.val.x) or not data.val.live.sum():
            return torch.tensor(0.5)
        scores = [self.mixed(w, store, share, data.val.x) for share in _SHARES]
        losses = [data.val.mean(self.task.per_example_loss(z, data.val.y, data.val.live)) for z in scores]
        return _SHARES[torch.stack(losses).argmin()]

    def mixed(self, w: Vec, store: Tree, share: Tensor, x: Tensor) -> Tensor:
        """Logarithms of the mixed probabilities."""
        scores, z = self.task.predict_from(w, x)
        p = share * self.votes(z, store) + (1 - share) * scores.softmax(-1)
        return p.clamp(min=_LEAST).log()

    def votes(self, z: Tensor, store: Tree) -> Tensor:
        far, at = torch.cdist(z, store["z"]).topk(min(self.neighbours, len(store["z"])), largest=False)
        near = (
            torch.exp(-far / (self.scale * far.mean(-1, keepdim=True)).clamp(min=1e-12)) * store["live"][at]
        )
        found = near[..., None] * one_hot(store["y"][at], self.task.outputs)
        return found.sum(-2) / near.sum(-1, keepdim=True).clamp(min=1e-12)
