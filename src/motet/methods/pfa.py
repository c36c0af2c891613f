"""PFA: clients with similar sparsity vectors go on training the global model in groups."""

from __future__ import annotations

from motet.core import Talk, Tree, Turn, average
from motet.methods.fedavg import FedAvg
from motet.parts.grouping import Grouping, updated


class PFA(Grouping, FedAvg):
    """PFA: clients with similar sparsity vectors go on training the global model in groups.

    Liu et al. 2021, "PFA: Privacy-preserving Federated Adaptation for Effective Model Personalization".

    FedAvg trains a global model W_g. Each client sends its sparsity vector, which says how often W_g's
    activations are zero on its examples. Clients with similar vectors form a group, and every group goes on
    with FedAvg from W_g. A client's own model is its group's. A client without a group yet uses W_g, which
    stays the global model. With one group this is FedAvg.

    Differs from the paper: how PFA makes groups from distances is not public. Here clients are grouped by
    k-means, as in FedPerC, or ("threshold") by links between vectors within a threshold. Vectors cover several
    layers, as in FedPerC; PFA's code uses 20 random channels of one layer, and Euclidean distances.
    parts/grouping.py lists our additions.
    The settings with which FedPerC's authors run it: warm_up 50, epochs 4, batch 64, lr 0.01, momentum 0.5,
    then 30 rounds.
    """

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        if self.is_warm_up(s, turn):
            s = s | {"W_g": (yield average(self.train, turn.cohort, send=s["W_g"]))}
            return (yield from self.update_extractor(s, turn))
        s = yield from self.admit(s, turn)
        s = yield from self.regroup(s, turn)
        groups = self.present(s, turn)
        W = yield [average(self.train, groups[g], send=s["models"][g]) for g in groups]  # one for each group
        return s | {"models": updated(s["models"], groups, W)}
