"""FedPerC: clients are clustered by sparsity vectors; a cluster shares the base layers, heads stay local."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Method, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.grouping import Grouping, updated
from motet.parts.personal_parts import all_head
from motet.parts.sparsity_groups import SparsityGroups
from motet.vec import Vec


class FedPerC(Grouping, FedAvg):
    """FedPerC: clients are clustered by sparsity vectors; a cluster shares the base layers, heads stay local.

    Yang et al. 2022, "A Federated Model Personalisation Method Based on Sparsity Representation and
    Clustering", Algorithm 1.

    FedAvg trains a global model W_g. Clients are clustered by k-means of their sparsity vectors, which say how
    often an extractor's activations are zero on a client's images (parts/sparsity_vectors.py). Then clients train base
    layers W_B and personalisation layer W_P (the head) together; a cluster averages W_B, and W_P stays local.
    With one cluster this is FedPer from W_g; with clusters of one client, local training from W_g.

    Differs from the paper: base layers are averaged by numbers of examples (line 7 has a sum; with equal sizes
    it is the mean). The extractor is W_g itself unless `extractor` names another network; the paper's is VGG-11
    without saying how it is trained: here by FedAvg in the warm-up, like W_g. The paper finds k by "several
    trials with randomly chosen clients" and does not say what decides: choose_k="trials" takes the least
    validation loss. Euclidean distances of means over layers, as in the paper, do not find the clusters of its own
    experiments; Mahalanobis distances of layers side by side do (experiments/fedperc/grouping), and are the default.
    parts/grouping.py lists our additions.
    The paper's settings: distance "euclidean", extractor_join "mean", warm_up 50, epochs 4, batch 64, lr 0.01,
    momentum 0.5, then 30 rounds.
    """

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same groups around another method, after the same warm-up by FedAvg."""
        return SparsityGroups.made(base, FedAvg, cls.__name__)

    def remarks(self) -> list[str]:
        after = "after the warm-up nothing is shared, and clients train alone"
        return all_head(self, after)

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        if self.is_warm_up(s, turn):
            s = s | {"W_g": (yield average(self.train, turn.cohort, send=s["W_g"]))}
            return (yield from self.update_extractor(s, turn))
        s = yield from self.admit(s, turn)  # the clusters C, and line 1 for new clients
        s = yield from self.regroup(s, turn)
        C = self.present(s, turn)  # lines 3 and 4: for c in C, for i in c
        W_B = yield [average(self.train, C[c], send=s["models"][c]) for c in C]  # lines 5 to 7
        return s | {"models": updated(s["models"], C, W_B)}

    def group_model(self, W_g: Vec) -> Vec:
        return W_g.drop(self.task.head)  # line 1: W_B,c <- W_g

    def sparsity_request(self, s: Tree) -> dict[str, Vec]:
        return super().sparsity_request(s) | {"W_P": s["W_g"].pick(self.task.head)}

    @verb
    def sparsity(self, sent: Tree, W_P: Vec, data: Data) -> tuple[Tree, Tree]:
        return self.sparsity_vector(sent["extractor"], data), sent["W_P"]  # line 1: W_P,i <- W_g

    @verb
    def train(self, w: Vec, W_P: Vec, data: Data) -> tuple[Tree, Tree]:
        if self.task.head[0] in w:  # a whole model: the warm-up
            return super().train(w, W_P, data)
        W_L = self.descend(self.task.loss, self.client_model(w, W_P), data)  # line 5: LocalUpdate
        return W_L.drop(self.task.head), W_L.pick(self.task.head)  # line 6: W_B,i leaves, W_P,i stays

    def client_model(self, W_B: Vec, W_P: Vec) -> Vec:
        return Vec(W_B | W_P)  # line 9: W_L,i <- W_B,c (W_P,i)

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)  # replaced by W_g's before it is used

    def download(self, s: Tree, client: str) -> Tree:
        w = Vec(s["W_g"] | super().download(s, client))
        return {"w": w, "grouped": torch.tensor(client in s["groups"])}

    def personal(self, view: Tree, W_P: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        """The cluster's base layers with the client's own W_P; W_g for a client that has no cluster yet."""
        w = view["w"]
        return partial(self.task.predict, Vec(w | W_P).where(view["grouped"], w))

    def trained_model(self, sent: Vec, reply: Vec, W_P: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(W_P | reply))
