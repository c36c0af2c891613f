"""FedRep: first the personal head is trained with the shared body fixed, then the body with the head fixed."""

from __future__ import annotations

import math

from motet.client import Data
from motet.core import Count, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import PersonalPart, all_head
from motet.vec import Vec


class FedRep(PersonalPart, FedAvg):
    """FedRep: a shared representation, for which each client first finds its best head and then improves the body.

    Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning", Algorithm 1: tau
    steps of the head h_i with the representation phi fixed, then steps of phi with h_i fixed; the server takes the
    simple mean of phi.
    Differs from the paper: both are counted in epochs.
    A network of one layer is all head: then this is local training, and a run says so.
    """

    strength = "head_epochs"
    head_epochs: Count = 5  # epochs of the head in a round (tau); the body has `epochs`

    def stays(self) -> tuple[str, ...]:
        return self.task.head

    def remarks(self) -> list[str]:
        return all_head(self)

    def private_steps(self, n: int) -> int:
        return super().private_steps(n) + self.head_epochs * math.ceil(n / self.batch)

    def round(self, phi: Vec, turn: Turn) -> Tree | Talk:
        return (yield average(self.train, turn.cohort, send=phi, weights=dict.fromkeys(turn.cohort, 1.0)))

    @verb
    def train(self, phi: Vec, h: Vec, data: Data) -> tuple[Tree, Tree]:
        h = self.descend(self.task.loss_of_part, h, data, given=phi, epochs=self.head_epochs)
        return self.descend(self.task.loss_of_part, phi, data, given=h), h
