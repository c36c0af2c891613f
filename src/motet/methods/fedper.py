"""FedPer: the body of the network is shared, the head is personal."""

from __future__ import annotations

import math

from motet.client import Data
from motet.core import Count, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.parts.personal_parts import PersonalPart, all_head
from motet.vec import Vec


class FedPer(PersonalPart, FedAvg):
    """FedPer: the body of the network is shared, the head is personal and never sent.

    Arivazhagan et al. 2019, "Federated Learning with Personalization Layers", Algorithms 1 and 2.
    As in the paper, the body is averaged by numbers of examples.
    A network of one layer is all head: then this is local training, and a run says so.
    With `alternate`, clients train as in FedRep (method=fedrep), and bodies still count by numbers of examples.
    """

    alternate: bool = False  # train first the head and then the body, as FedRep does
    head_epochs: Count = 5  # only with alternate: epochs of the head; the body has `epochs`

    def stays(self) -> tuple[str, ...]:
        return self.task.head

    def private_steps(self, n: int) -> int:
        more = self.head_epochs * math.ceil(n / self.batch) if self.alternate else 0
        return super().private_steps(n) + more

    def remarks(self) -> list[str]:
        return all_head(self)

    @verb
    def train(self, body: Vec, head: Vec, data: Data) -> tuple[Tree, Tree]:
        if not self.alternate:
            return super().train(body, head, data)
        head = self.descend(self.task.loss_of_part, head, data, given=body, epochs=self.head_epochs)
        return self.descend(self.task.loss_of_part, body, data, given=head), head
