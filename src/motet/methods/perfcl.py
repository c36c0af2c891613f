"""PerFCL: FENDA whose shared features stay near those of all clients, and whose own features stay apart from them."""

from __future__ import annotations

from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Positive, Tree, verb
from motet.methods.fedavg import FedAvg
from motet.methods.fenda import FENDA
from motet.parts.features import contrast
from motet.parts.personal_parts import refuse_without_linear_head
from motet.vec import Vec


class PerFCL(FENDA):
    """PerFCL: FENDA with two contrastive losses, one for the features of each body.

    Zhang et al. 2022, "Personalized Federated Contrastive Learning": agreement of shared features with the global model
    is as large as can be, and that of own features as small. In the variant of FL4Health's hospital benchmark, shared
    features are held near those of the body that the server sent and away from those of the client's last shared body
    (mu); own features are held near those of its last own body and away from those of the sent one (gamma).
    Differs from the paper: the two losses are that variant's, since of the paper only the summary was at hand. As in
    FENDA here, both bodies are of one kind. A client that comes for the first time has the initial weights as its last
    bodies. mu 0 and gamma 0 are FENDA.
    """

    private_steps = FedAvg.private_steps

    strength = "mu"
    mu: NotNegative = 1.0  # weight of the contrastive loss of shared features
    gamma: NotNegative = 1.0  # weight of the contrastive loss of the client's own features
    temperature: Positive = 0.5  # of both contrastive losses

    def check(self) -> None:
        super().check()
        refuse_without_linear_head(self, "compares features that the last layer sees")

    def join(self, data: Data) -> Tree:
        return super().join(data) | {"last": self.task.w0.drop(self.task.head)}

    @verb
    def train(self, body: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        both = Vec.join(shared=Vec(body | keep["head"]), own=keep["own"])
        given = [Vec(v | keep["head"]) for v in (body, keep["last"])] + [keep["own"]]
        w, own = self.descend(self.contrasted, both, data, given=given).split("shared", "own")
        body, head = w.drop(self.task.head), w.pick(self.task.head)
        return body, {"head": head, "own": own, "last": body}

    def contrasted(self, both: Vec, batch: Batch, given: list[Vec]) -> Tensor:
        shared, own = (self.task.predict_from(v, batch.x) for v in both.split("shared", "own"))
        sent, last, last_own = (self.task.predict_from(v, batch.x)[1] for v in given)
        con = self.mu * contrast(shared[1], sent, last, self.temperature)
        con = con + self.gamma * contrast(own[1], last_own, sent, self.temperature)
        return batch.mean(self.task.per_example_loss(shared[0] + own[0], batch.y, batch.live) + con)
