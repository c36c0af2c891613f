"""FedSAM: clients look for flat minima."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad

from motet.client import Batch, Data
from motet.core import NotNegative, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.vec import Vec


class FedSAM(FedAvg):
    """FedSAM: FedAvg whose clients step along the gradient at the steepest point nearby, which leads to flat minima.

    Qu et al. 2022, "Generalized Federated Learning via Sharpness Aware Minimization", Algorithm 1 (FedSAM, without
    MoFedSAM's momentum); Caldarola et al. 2022 study the same. Each step goes along grad f(w + rho g / |g|) with
    g = grad f(w) on the same minibatch. As in the paper, except that replies are weighted by numbers of examples.
    rho 0 is FedAvg. A round takes twice the time of FedAvg's.
    """

    beyond_budget = "each step takes two gradients of the same rows"

    strength = "rho"
    rho: NotNegative = 0.05  # how far away the steepest point is sought

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.sharpest, w, data), keep

    def sharpest(self, w: Vec, batch: Batch) -> Tensor:
        g = grad(self.task.loss)(w.map(lambda a, _: a.detach()), batch)
        away = (self.rho / (g.sq().sqrt() + 1e-12) * g).map(lambda a, _: a.detach())
        return self.task.loss(w + away, batch)  # statistics of this pass go nowhere: w has those of its own
