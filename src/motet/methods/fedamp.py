"""FedAMP: each client is sent a mixture of clients' models, in which models like its own count most."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Positive, Share, Talk, Tree, Turn, collect, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import CollectedModels
from motet.parts.several_models import flat, unflat
from motet.vec import Vec


class FedAMP(CollectedModels, FedAvg):
    """FedAMP: each client is sent a mixture of clients' models, in which models that are like its own count most.

    Huang et al. 2021, "Personalized Cross-Silo Federated Learning on Non-IID Data", Algorithm 1: a client gets
    u_i = sum_j xi_ij w_j, where xi_ij falls with exp(-|w_i - w_j|^2 / sigma) and xi_ii is the rest, and trains by
    f_i(w) + lam/2 |w - u_i|^2.
    Differs from the paper: sigma counts in mean squared distances of clients' models, which depend on the network;
    xi_ij is alpha / m at most for m models, so that xi_ii is never negative; training starts at u_i. A client that the
    server does not know yet gets the initial weights. The server sees every client's model.
    With alpha 0 this is local training with a pull to the last model; with alpha 1 and a large sigma, FedProx with
    clients that count alike.
    """

    private_steps = FedAvg.private_steps

    strength = "sigma"
    sigma: Positive = 0.3  # width of the attention, in mean squared distances of clients' models
    alpha: Share = (
        1.0  # largest weight of another client's model, as a share of 1 / number of models (alpha_k)
    )
    lam: NotNegative = 0.1  # pull to the mixture u_i (lambda / alpha_k)

    def penalty(self) -> float:
        return super().penalty() + self.lam

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        # collect, not average: models are compared with each other.
        replies = yield collect(self.train, turn.cohort, each=self.mixtures(s["models"], turn.cohort))
        return self.with_models(s, replies)

    def mixtures(self, models: dict[str, Vec], cohort: Sequence[str]) -> dict[str, Vec]:
        """u_i of each client."""
        known = sorted(models)
        every = flat([models[c] for c in known]) if known else torch.zeros(0, 0)
        u = dict(zip(known, attention(every, self.sigma, self.alpha) @ every, strict=True))
        return {c: unflat(u[c], self.task.w0) if c in u else self.task.w0 for c in cohort}

    @verb
    def train(self, u: Vec, own: Vec, data: Data) -> tuple[Tree, Tree]:
        w = self.descend(self.near, u, data, given=u)
        return w, w

    def near(self, w: Vec, batch: Batch, u: Vec) -> Tensor:
        return self.task.loss(w, batch) + self.lam / 2 * (w - u).sq()


def attention(w: Tensor, sigma: float, alpha: float) -> Tensor:
    """xi of models (m, weights): (m, m), rows add up to 1."""
    many, far = len(w), torch.cdist(w, w, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    width = far.sum() / max(many * (many - 1), 1)
    xi = alpha / max(many, 1) * torch.exp(-far / (sigma * width.clamp(min=1e-300)))
    xi = xi - torch.diag(xi.diag())
    return xi + torch.diag(1 - xi.sum(1))
