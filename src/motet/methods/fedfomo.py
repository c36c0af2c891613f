"""FedFomo: each client takes from other clients' models as much as they help on its validation examples."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.client import Data, seed_of
from motet.client.data import orders
from motet.core import Count, Talk, Tree, Turn, collect, verb
from motet.methods.fedavg import FedAvg
from motet.parts.games import local_loss_and_accuracy
from motet.parts.personal_parts import CollectedModels
from motet.parts.several_models import mixed
from motet.vec import Vec


class FedFomo(CollectedModels, FedAvg):
    """FedFomo: each client is sent some other clients' models, and moves to them as far as they help it.

    Zhang et al. 2021, "Personalized Federated Learning with First Order Model Optimization", Algorithm 1: a client's
    weight for the model theta_n is (L(theta_i) - L(theta_n)) / |theta_n - theta_i| where that is above 0, the weights
    are made to add up to 1, theta_i <- theta_i + sum w_n (theta_n - theta_i), and then it trains.
    L is the loss on validation examples, so that validation scores are a little better than they should be; a client
    without any takes its training examples.
    Differs from the paper: which models a client is offered is drawn anew in every round. The paper's server learns
    clients' weights and prefers models that helped, which would tell it losses at points that it chose.
    The server sees every client's model, and clients see those of others.
    """

    beyond_budget = "losses on validation rows weigh the models that rows are trained from"

    strength = "offered"
    offered: Count = (
        5  # models of others that a client is sent in a round (M); initial weights where there are fewer
    )

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        offers = {c: self.drawn(s["models"], c, turn.seed) for c in turn.cohort}
        # collect, not average: clients are sent each other's models.
        replies = yield collect(self.train, turn.cohort, each=offers)
        return self.with_models(s, replies)

    def drawn(self, models: dict[str, Vec], client: str, seed: int) -> list[Vec]:
        others = [models[c] for c in sorted(models) if c != client]
        many = torch.tensor(len(others))
        order = orders(torch.tensor(seed_of(seed, client)), 0, many, len(others)).tolist()
        return ([others[i] for i in order] + [self.task.w0] * self.offered)[: self.offered]

    @verb
    def train(self, models: Tree, theta: Vec, data: Data) -> tuple[Tree, Tree]:
        w = self.weights(models, theta, data)
        theta = self.descend(self.task.loss, (1 - w.sum()) * theta + mixed(models, w), data)
        return theta, theta

    def weights(self, models: list[Vec], theta: Vec, data: Data) -> Tensor:
        """w_n, (models,): 1 in all, or all 0 where no model helps."""
        own, *theirs = (local_loss_and_accuracy(self.task, m, data)[0] for m in (theta, *models))
        far = torch.stack([(m - theta).sq().sqrt() for m in models])
        gain = (own - torch.stack(theirs)).clamp(min=0) / far.clamp(min=1e-12)
        return gain / gain.sum().clamp(min=1e-12)
