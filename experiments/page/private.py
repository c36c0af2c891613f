"""PAGE whose server learns a mean model only: `method=experiments.page.private:PrivatePAGE`."""

from __future__ import annotations

from functools import partial

from motet.client import Batch, Data
from motet.core import Count, MethodUnfit, NoReply, Talk, Tree, Turn, average, collect, verb
from motet.methods.page import PAGE
from motet.parts import games
from motet.vec import stack


class PrivatePAGE(PAGE):
    """PAGE for servers that must not see a single client's model.

    Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", Algorithms 1
    and 2, as in motet.methods.page. The proxy set is public: the server sends it, each client scores its own model
    on it, and the server learns two numbers of each client and the weighted mean of the models, which may be masked
    or robust.
    Differs from the paper, in addition: clients could lie about their scores, and the server can compare no
    candidates of p, because that takes models. All else is the same, number by number.
    A client keeps the model that it trained and sends it in a second message, once its weight is known. The methods
    of motet never send what a client keeps, so this class is none of them.
    """

    candidates: Count = 1  # must be 1: the server sees no models with which it could compare choices of p

    def unused(self) -> dict[str, str]:
        blind = "the server sees no models that it could score"
        return super().unused() | dict.fromkeys(("step_max", "step_rule"), blind)

    def start(self, turn: Turn) -> Tree | Talk:
        if self.candidates > 1:
            raise MethodUnfit(
                f"PAGE's server is to compare {self.candidates} candidates of p, and it sees no models to "
                "compare them with.\nhint: method.candidates=1"
            )
        return super().start(turn)

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        proxy = games.evenly_spaced(turn.proxy, self.proxy_rows)
        sent = {"w": state["w"], "proxy": (proxy.x, proxy.y)}
        # collect: the server's agent takes every client's accuracy and loss. The models are averaged only.
        replies = yield collect(self.train, turn.cohort, send=sent)
        if not replies:
            raise NoReply(f"page, round {turn.number}: nobody answered; hint: is the cohort empty?")
        who, found = sorted(replies), stack([replies[c] for c in sorted(replies)])
        p, me = self.choose(state, turn, who, found, lambda p: p.sum())
        w = yield average(self.send_model, who, weights=dict(zip(who, p.tolist(), strict=True)))
        return me | self.outcome(w, p, found["f"], turn.proxy)

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, keep = super().train(sent["w"], keep, data)
        own = partial(self.task.predict, keep["w"])
        _, score = games.loss_and_accuracy(self.task, own, Batch.of(*sent["proxy"]))
        return {"score": score, "f": reply["f"]}, keep

    @verb
    def send_model(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        """The model that `train` made; of these the server learns the mean only."""
        return keep["w"], keep
