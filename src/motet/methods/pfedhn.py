"""pFedHN: a hypernetwork at the server makes each client's model from an embedding of the client."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from motet.client import Data, seed_of
from motet.core import Count, Positive, Talk, Tree, Turn, collect, verb
from motet.methods.fedavg import FedAvg
from motet.parts.extra_layers import new_embedding, new_linear
from motet.parts.several_models import flat, unflat
from motet.vec import Vec


class PFedHN(FedAvg):
    """pFedHN: a hypernetwork at the server makes each client's model from an embedding of the client, and learns both.

    Shamsian et al. 2021, "Personalized Federated Learning using Hypernetworks", Algorithm 1: client i trains
    theta_i = h(v_i; phi), which changes it by Delta_i; the server moves phi and v_i along the gradients of
    <theta_i, Delta_i>. phi and v_i never leave the server, and it sees every client's model.
    Differs from the paper: clients send the trained model, and the server takes the difference. h has one hidden layer
    (tanh) and adds its output, zero at first, to the network's initial weights and to a shift that all clients share;
    clients of a round move phi together: by the mean of their gradients in the shift, and by their sum in all else. A
    client that never came has the mean embedding.
    """

    private_steps = FedAvg.private_steps

    strength = "server_lr"
    width: Count = 32  # numbers in a client's embedding v
    hidden: Count = 100  # units of the hypernetwork, and its weights for each weight of the network
    server_lr: Positive = 0.25  # learning rate of the hypernetwork and the embeddings (alpha)

    def start(self, turn: Turn) -> Tree | Talk:
        many = sum(a.numel() for a in self.task.w0.values())
        last = {"out": torch.zeros(many, self.hidden), "shift": torch.zeros(many)}
        return {"phi": Vec(new_linear(turn.seed, self.width, self.hidden) | last), "v": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        new = {
            c: new_embedding(seed_of("embedding", c), 1, self.width)[0]
            for c in turn.cohort
            if c not in s["v"]
        }
        v = dict(sorted((new | s["v"]).items()))
        each = {c: self.model(s["phi"], v[c]) for c in turn.cohort}
        # collect, not average: each difference moves its client's embedding.
        trained = yield collect(self.train, turn.cohort, each=each)
        deltas = {c: w - each[c] for c, w in trained.items()}
        phi, moved = self.moved(s["phi"], v, deltas)
        return {"phi": phi, "v": v | moved}

    def model(self, phi: Vec, v: Tensor) -> Vec:
        return self.task.w0 + unflat(self.output(phi, v), self.task.w0)

    def output(self, phi: Vec, v: Tensor) -> Tensor:
        z = torch.tanh(phi["weight"] @ v + phi["bias"])
        return phi["out"] @ (z / self.hidden**0.5) + phi["shift"]

    def moved(
        self, phi: Vec, v: Mapping[str, Tensor], deltas: Mapping[str, Vec]
    ) -> tuple[Vec, dict[str, Tensor]]:
        """phi and the embeddings of those who replied, after a step."""
        names = sorted(deltas)
        leaves = [t.detach().requires_grad_() for t in (*phi.values(), *(v[c] for c in names))]
        own, theirs = Vec(zip(phi, leaves, strict=False)), leaves[len(phi) :]
        rows = flat([deltas[c] for c in names]).to(own["shift"])
        with torch.enable_grad():
            total = torch.stack(
                [self.output(own, e) @ row for e, row in zip(theirs, rows, strict=True)]
            ).sum()
            g = torch.autograd.grad(total, leaves)
        slope = Vec(zip(phi, g, strict=False))
        slope["shift"] = slope["shift"] / len(names)
        steps = {c: v[c] + self.server_lr * e for c, e in zip(names, g[len(phi) :], strict=True)}
        return phi + self.server_lr * slope, steps

    def global_model(self, s: Tree) -> None:
        return None

    def download(self, s: Tree, client: str) -> Tree:
        known = [s["v"][c] for c in ([client] if client in s["v"] else sorted(s["v"]))]
        return self.model(s["phi"], torch.stack(known).mean(0)) if known else self.task.w0

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return s | {"v": after["v"] | s["v"]}

    @verb
    def train(self, theta: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.task.loss, theta, data), keep
