"""FedPerC: clients whose data look alike share the body of a network; heads stay at home.

Yang et al. 2022, "A Federated Model Personalisation Method Based on Sparsity Representation and
Clustering", Algorithm 1. Groups are found as in PFA (pfa.py says how, and what differs): after the warm-up,
those of a group train body and head together, and average bodies. Heads start as the head of W_g, which a
client is sent once, when it is asked for its sketch.

Differs from the paper: bodies are averaged by numbers of examples (line 7 has a sum; with equal sizes it is
the mean). Sparsity vectors are of W_g itself unless `extractor` names another network; the paper's is
vgg11, and how it is trained is not said: here, as W_g is. k-means with Euclidean distances, as the paper has
it, does not find the groups of the paper's federations; with distance = "mahalanobis" it does
(experiments/fedperc/grouping).
With one group it is FedPer from W_g; with everyone alone, it is training on at home from W_g.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Tree, verb
from motet.methods.pfa import PFA
from motet.vec import Vec


class FedPerC(PFA):
    def shared(self, w: Vec) -> Vec:
        return w.drop(self.task.head)

    def whole(self, model: Vec, head: Vec) -> Vec:
        return Vec(model | head)

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)  # not used until W_g's takes its place

    def letter(self, s: Tree) -> dict[str, Vec]:
        return super().letter(s) | {"head": s["w"].pick(self.task.head)}

    @verb
    def sketch(self, sent: Tree, head: Vec, data: Data) -> tuple[Tree, Tree]:
        v, _ = super().sketch(sent, head, data)
        return v, sent["head"]

    @verb
    def train(self, w: Vec, head: Vec, data: Data) -> tuple[Tree, Tree]:
        if self.task.head[0] in w:  # warming up
            return super().train(w, head, data)
        w = self.descend(self.task.loss, Vec(w | head), data)
        return w.drop(self.task.head), w.pick(self.task.head)

    def download(self, s: Tree, client: str) -> Tree:
        body = super().download(s, client)
        return {"w": Vec(s["w"] | body), "grouped": torch.tensor(client in s["members"])}

    def personal(self, view: Tree, head: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        """The group's body with the client's own head; W_g for who has no group yet."""
        w = view["w"]
        return partial(self.task.predict, Vec(w | head).where(view["grouped"], w))

    def trained_model(self, sent: Vec, reply: Vec, head: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(head | reply))
