"""FedCP: for each example, a small shared network divides the features between a global and a personal head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from motet.client import Batch, Data
from motet.core import NotNegative, Talk, Tree, Turn, verb
from motet.methods.fedavg import FedAvg
from motet.parts.extra_layers import linear_norm_relu, new_normed_linear
from motet.parts.features import squared_mmd
from motet.parts.personal_parts import own_or, refuse_what_follows_head, refuse_without_body
from motet.vec import Vec


class FedCP(FedAvg):
    """FedCP: for each example, a small shared network divides the features between a global and a personal head.

    Zhang et al. 2023, "FedCP: Separating Feature Information for Personalized Federated Learning via Conditional
    Policy", Algorithm 1. The policy network (linear, LayerNorm, ReLU) gets features f, each times the share that it has
    in the personal head, and gives r in [0, 1] for each of them. Scores are g(r f) + h((1 - r) f), with the global head
    g fixed. lam times the squared distance (MMD) holds the features of a minibatch to those of the received body. The
    server averages body, policy network and personal heads: this is the next g, and clients keep their own h.
    Differs from the paper: r is a softmax without the Gumbel softmax's noise. The authors' code sends the mean of g
    and h in place of h. A client that never took part has no h of its own and uses g for both.
    """

    beyond_budget = "a network beside the model is trained in a way that is not checked"

    strength = "lam"
    lam: NotNegative = 5.0  # weight of the distance to the received body's features (lambda)

    def check(self) -> None:
        super().check()
        refuse_without_body(self, "divides features between two heads")
        refuse_what_follows_head(self, "divides features between two heads")

    def start(self, turn: Turn) -> Tree | Talk:
        width = self.task.width
        return Vec.join(w=self.task.w0, policy=new_normed_linear(turn.seed, width, 2 * width))

    def global_model(self, state: Vec) -> Vec:
        return state.split("w")[0]

    def join(self, data: Data) -> Tree:
        return self.task.w0.pick(self.task.head)

    @verb
    def train(self, sent: Vec, h: Vec, data: Data) -> tuple[Tree, Tree]:
        w, policy = sent.split("w", "policy")
        start = Vec.join(w=Vec(w | h), policy=policy)
        u = self.descend(self.divided_loss, start, data, given=(w, self.condition(h)))
        return u, u.split("w")[0].pick(self.task.head)

    def divided_loss(self, u: Vec, batch: Batch, given: tuple[Vec, Tensor]) -> Tensor:
        (w, policy), (sent, v) = u.split("w", "policy"), given
        scores, f = self.scores_from(w, policy, sent.pick(self.task.head), v, batch.x)
        before = self.task.predict_from(sent, batch.x)[1].detach()
        loss = batch.mean(self.task.per_example_loss(scores, batch.y, batch.live))
        return loss + self.lam * squared_mmd(f, before, batch.live)

    def scores_from(self, w: Vec, policy: Vec, g: Vec, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.task.predict_from(w, x)[1]
        pairs = linear_norm_relu(policy, f * v).reshape(len(x), 2, -1)  # (examples, 2, features)
        r = pairs.softmax(-2)[..., 0, :]
        return self.task.top(g, r * f) + self.task.top(w.pick(self.task.head), (1 - r) * f), f

    def condition(self, h: Vec) -> Tensor:
        """The sum of the personal head's weights over classes, of length 1."""
        v = next(a for a in h.values() if a.ndim == 2).sum(0)
        return v / v.norm().clamp(min=1e-12)

    def trained_model(self, sent: Vec, u: Vec, h: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        w, policy = u.split("w", "policy")
        return partial(self.scores, w, policy, sent.split("w")[0].pick(self.task.head), self.condition(h))

    def personal(self, sent: Vec, h: Vec, data: Data) -> Callable[[Tensor], Tensor]:
        w, policy = sent.split("w", "policy")
        g = w.pick(self.task.head)
        h = own_or(self.task, h, g)
        return partial(self.scores, Vec(w | h), policy, g, self.condition(h))

    def scores(self, w: Vec, policy: Vec, g: Vec, v: Tensor, x: Tensor) -> Tensor:
        return self.scores_from(w, policy, g, v, x)[0]
