"""FedPAC: a shared body whose features are held near those of all clients, and heads that clients mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.core import Count, NotNegative, Talk, Tree, Turn, average, collect, verb
from motet.methods.fedavg import FedAvg
from motet.parts.games import weighted_mean
from motet.parts.head_mixtures import mixtures
from motet.parts.prototypes import Prototypes, blank, distance_to, joined
from motet.parts.several_models import mean_of, mixed
from motet.vec import Vec, stack


class FedPAC(Prototypes, FedAvg):
    """FedPAC: clients hold the features of a shared body near those of all, and each uses a mixture of clients' heads.

    Xu et al. 2023, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", Algorithm 1:
    a client trains its head phi_i with the body fixed, then the body theta with phi_i fixed by the task's loss and lam
    times the squared distance of features to the centroid of their class. The server takes the mean of theta, and gives
    client i the head sum_j alpha_ij phi_j with the least |h_i - sum_j alpha_ij h_j|^2 + sum_j alpha_ij^2 V_j. h_i are
    mean features by class, times the shares of classes, and V_i is their variance (parts/head_mixtures.py).
    Differs from the paper: centroids are those of the shared body as clients receive it, where the paper takes those of
    each client's body after its training; the distance is a mean over features, as in the authors' code.
    The server sees each client's head and its mean features by class. A client that never came uses the mean head.
    """

    strength = "lam"
    lam: NotNegative = 1.0  # weight of the distance to centroids (lambda)
    head_epochs: Count = 1  # epochs of the head in a round; the body has `epochs` (the paper: 5)

    def start(self, turn: Turn) -> Tree | Talk:
        w0, head = self.task.w0, self.task.head
        return {"body": w0.drop(head), "C": blank(self.task), "head": w0.pick(head), "heads": {}}

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        # collect, not average: each client's head and features decide on what the others take from it.
        found = yield collect(self.prototypes, turn.cohort, send=s["body"])
        each = {c: {"body": s["body"], "head": s["heads"].get(c, s["head"])} for c in turn.cohort}
        phi = yield collect(self.train_head, turn.cohort, each=each)
        C = joined(s["C"], pooled(found))
        body = yield average(self.train, turn.cohort, send={"body": s["body"], "C": C})
        return {"body": body, "C": C} | self.collaborate(s["heads"], found, phi)

    def collaborate(self, heads: Tree, found: Tree, phi: dict[str, Vec]) -> Tree:
        """Heads of clients, and the mean of those that came."""
        names, mean = sorted({*found} & {*phi}), mean_of([phi[c] for c in sorted(phi)])
        if not names:
            return {"heads": heads, "head": mean}
        came, every = stack([found[c] for c in names]), [phi[c] for c in names]
        alpha = mixtures(came["sums"].flatten(1), came["v"])
        return {
            "heads": heads | {c: mixed(every, a) for c, a in zip(names, alpha, strict=True)},
            "head": mean,
        }

    def global_model(self, s: Tree) -> None:
        return None

    def download(self, s: Tree, client: str) -> Tree:
        return Vec(s["body"] | s["heads"].get(client, s["head"]))

    def after_visit(self, s: Tree, after: Tree) -> Tree:
        return s | {"heads": after["heads"] | s["heads"]}

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    def own_model(self, body: Vec, head: Vec) -> Vec:
        return Vec(body | head)

    @verb
    def prototypes(self, body: Vec, head: Vec, data: Data) -> tuple[Tree, Tree]:
        h, _ = super().prototypes(body, head, data)
        n, z = data.live.sum(), self.row_features(self.own_model(body, head), data)
        v = (data.live @ z.square().sum(-1) / n - h["sums"].square().sum()) / n
        return h | {"v": v, "n": n}, head

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Tensor]) -> Tree:
        most = (self.feature_clip or 1.0) ** 2 * self.task.width / reply["n"]
        v = (reply["v"] + most * draw(()).to(reply["v"])).clamp(min=0)
        return reply | super().noised(verb, sent, reply, draw) | {"v": v}

    @verb
    def train_head(self, sent: Tree, head: Vec, data: Data) -> tuple[Tree, Tree]:
        how = {"given": sent["body"], "epochs": self.head_epochs}
        head = self.descend(self.task.loss_of_part, sent["head"], data, **how)
        return head, head

    @verb
    def train(self, sent: Tree, head: Vec, data: Data) -> tuple[Tree, Tree]:
        return self.descend(self.aligned, sent["body"], data, given=(head, sent["C"])), head

    def aligned(self, body: Vec, batch: Batch, given: tuple[Vec, Tree]) -> Tensor:
        head, C = given
        scores, z = self.task.predict_from(Vec(body | head), batch.x)
        loss = self.task.per_example_loss(scores, batch.y, batch.live)
        return batch.mean(loss + self.lam * distance_to(z, batch.y, C))

    def trained_model(self, sent: Tree, body: Vec, head: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, Vec(body | head))


def pooled(found: dict[str, Tree]) -> Tree:
    """The mean reply of clients by numbers of examples."""
    every = stack([found[c] for c in sorted(found)])
    return weighted_mean({k: every[k] for k in ("sums", "counts")}, (every["n"] / every["n"].sum()).double())
