"""GPFL: features are turned in two ways, one guided by shared embeddings of classes, one for a personal head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from motet.client import Batch, Data
from motet.client.losses import Criterion
from motet.core import NotNegative, Talk, Tree, Turn, verb
from motet.methods.fedavg import FedAvg
from motet.parts.extra_layers import linear_relu_norm, new_embedding, new_normed_linear
from motet.parts.personal_parts import refuse_what_follows_head, refuse_without_body, without_classes
from motet.vec import Vec

_SMALL = 0.1  # first scale of gamma and beta
_LEAST = 1e-12  # under the root of a distance, whose slope at 0 would be infinite


class GPFL(FedAvg):
    """GPFL: features are turned in two ways, one guided by shared embeddings of classes, one for a personal head.

    Zhang et al. 2023, "GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
    Federated Learning", Algorithm 1. A conditional valve makes gamma and beta of a condition, and of features f
    relu((gamma + 1) f + beta): global ones with the mean of all class embeddings as the condition, personal ones with
    the mean by the client's shares of classes. The personal head learns from the personal ones. Global ones are held to
    the direction of their class's embedding (softmax of cosines), and by lam times their distance to its place.
    Shared: body, valve and embeddings. The head stays at home.
    Differs from the paper: the scale of the normalisation in the valve starts at 0.1, so that the valve starts near
    doing nothing, and rates that are safe for the network stay safe. `decay` is of all weights, where the paper's mu is
    of valve and embeddings. As in the authors' code, equation 7 does not divide by the number of classes once more.
    """

    beyond_budget = "numbers of rows of each class are in the model"

    strength = "lam"
    lam: NotNegative = 0.01  # weight of the distance to the class's embedding (lambda)

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "turns features that the layers before the last make")
        refuse_what_follows_head(self, "turns features that the last layer sees")

    def unfit_loss(self) -> str:
        return without_classes(self, "it has an embedding for each class")

    def start(self, turn: Turn) -> Tree | Talk:
        K = self.task.width
        embeddings = Vec(E=new_embedding(turn.seed, self.task.outputs, K, salt=3))
        valve = {
            name: new_normed_linear(turn.seed, K, K, salt, _SMALL)
            for salt, name in enumerate(("gamma", "beta"))
        }
        return Vec.join(body=self.task.w0.pick(self.task.body), embeddings=embeddings, **valve)

    def global_model(self, shared: Vec) -> None:
        return None

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    @verb
    def train(self, shared: Vec, head: Vec, data: Data) -> tuple[Tree, Tree]:
        E = shared["embeddings E"]
        given = (E, E.mean(0), self.shares(data) @ E)
        u = self.descend(self.guided, Vec(shared | Vec.join(head=head)), data, given=given)
        return u.pick(shared), u.split("head")[0]

    def guided(self, u: Vec, batch: Batch, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The three losses of the paper."""
        E, g, p = given
        body, head = u.split("body", "head")
        f = self.task.predict_from(Vec(body | head), batch.x)[1]
        f_g = self.turned(u, f, g)
        personal = self.task.per_example_loss(self.task.top(head, self.turned(u, f, p)), batch.y, batch.live)
        cosines = normalize(f_g, dim=-1) @ normalize(u["embeddings E"], dim=-1).T
        angle, place = (
            Criterion("cross_entropy").of_rows(cosines, batch.y),
            ((f_g - E[batch.y]).square().sum(-1) + _LEAST).sqrt(),
        )
        return batch.mean(personal + angle + self.lam * place)

    def turned(self, u: Vec, f: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (linear_relu_norm(layer, condition) for layer in u.split("gamma", "beta"))
        return ((gamma + 1) * f + beta).relu()

    def shares(self, data: Data) -> Tensor:
        """The client's shares of classes."""
        counts = torch.zeros(self.task.outputs).scatter_add(0, data.y, data.live)
        return counts / counts.sum().clamp(min=1e-12)

    def personal(self, shared: Vec, head: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        (body,) = shared.split("body")
        valve = shared.drop([k for k in shared if k.startswith("body ")])
        return partial(self.scores, Vec(body | head), valve, self.shares(data) @ shared["embeddings E"])

    def scores(self, w: Vec, valve: Vec, p: Tensor, x: Tensor) -> Tensor:
        f = self.task.predict_from(w, x)[1]
        return self.task.top(w.pick(self.task.head), self.turned(valve, f, p))
