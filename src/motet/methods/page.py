"""PAGE: clients choose how they train, then the server chooses whom to trust; both learn what pays.

Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", sections
4.1 to 4.4, Algorithms 1 and 2. Clients lead with epochs alpha_i and learning rate eta_i, the server
follows with weights p_i, W(t+1) = sum p_i w_i, and each has an agent (DDPG):

          state                                   action         reward
client    accuracy of its last w_i, validation    alpha, eta     1 / f_i(w_i), validation
server    accuracy of every w_i, proxy set        p_1 … p_N      1 / loss of W(t+1), proxy set

A client's model is w_i as its training left it. Without a validation set of its own it takes its
training examples.

Differs from the paper:
- The server's reward is by default how W(t+1) does on the proxy set, as in the authors' code. The paper's
  1 / sum p_i f_i(w_i) (`reward = "paper"`) is largest with all weight on the client of the lowest loss.
- The first 36 rounds are random, as in the code; in the paper it is the first one.
- `client_mix` rewards a client for the next model it receives, and `server_mix` the server for what clients
  earn in the round after its choice, the first that its choice can change.
- Clients may be absent or come late: the server's agent has seats, of which the absent weigh nothing.
- Unless `private`, the server takes the mean itself, so that a guard's robust mean has no part in it.
Differs from the authors' code: nothing is chosen by test examples; the server chooses after it has seen the
round's models; actions span their ranges evenly and are remembered as they were chosen, in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.core import (
    Client,
    Count,
    Method,
    NoReply,
    NotNegative,
    Positive,
    Share,
    Talk,
    Tree,
    Turn,
    Unfit,
    average,
    collect,
    verb,
)
from motet.local import Batch, Data, descend
from motet.parts import agents, game
from motet.vec import Vec, stack

_NEVER = 1 << 60  # rounds until agents act on their own, if they never do


class PAGE(Method):
    lr_min: Positive = 0.03  # smallest local learning rate that a client can choose (eta)
    lr_max: Positive = 0.3  # largest
    epochs_max: Count = 10  # most local epochs that it can choose (alpha)
    budget: tuple[
        Count, ...
    ] = ()  # most epochs a client can afford, drawn from these as it joins; () = epochs_max
    batch: Count = 16  # examples in a local step
    momentum: Share = 0.0  # of local steps; forgotten between rounds
    decay: NotNegative = 0.0  # weight decay
    clip: NotNegative = 0.0  # longest gradient allowed; 0 = any
    reward: Literal["proxy", "paper"] = "proxy"  # the server's: by its proxy set, or by clients' losses
    eps: Positive = 1e-5  # added to a loss before it is inverted
    client_scale: Positive = 1.0  # clients' rewards are multiplied by this,
    server_scale: Positive = 1.0  # and the server's by this; both leave what is best where it is
    client_mix: NotNegative = 0.0  # what the global model's 1/f_i(W) counts in a client's reward
    server_mix: NotNegative = 0.0  # what clients' mean reward counts in the server's
    fixed: tuple[Literal["eta", "alpha", "p"], ...] = ()  # held constant: lr_max, epochs_max, equal weights
    random: bool = False  # all actions are drawn, to see what learning is worth
    private: bool = False  # the proxy set is public: clients score themselves, and only a mean model is seen
    glance: Annotated[int, ">= 0"] = 500  # proxy rows on which each client's model is scored; 0 = all
    capacity: Annotated[int, ">= 0"] = 0  # seats of the server's agent; 0 = twice the clients at the start
    actor: tuple[Count, ...] = (40, 30)  # sizes of the actors' hidden layers
    critic: tuple[Count, ...] = (40, 30)  # and of the critics'
    actor_lr: Positive = 0.0005  # the actors' learning rate (Adam)
    critic_lr: Positive = 0.005  # the critics'
    gamma: Share = 0.99  # what a reward is worth a round later
    tau: Share = 0.005  # how far the target networks follow in a round (beta)
    recall: Count = 32  # memories that an agent learns from in a round
    memory: Count = 1000  # rounds that it remembers
    warm_up: Annotated[int, ">= 0"] = 36  # first rounds with actions at random
    fade: Annotated[int, ">= 0"] = 500  # rounds until the noise on clients' actions has faded; 0 = never

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        self.proxy(turn)
        many = self.capacity or 2 * len(turn.clients)
        agent, none = agents.born(self.server(many), turn.seed), torch.zeros(many)
        return {"w": self.task.w0, "agent": agent, "s": none, "a": none, "r": torch.zeros(()), "seats": {}}

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        proxy = self.proxy(turn)
        exam = game.every(proxy, self.glance)
        sent = {"w": state["w"], "proxy": (exam.x, exam.y) if self.private else ()}
        # Every reply and not their mean: the server answers to each of the round's models with its weight.
        replies = yield collect(self.train, turn.cohort, send=sent)
        who = sorted(replies)
        if not who:
            raise NoReply(f"page, round {turn.number}: nobody answered; hint: is the cohort empty?")
        found = stack([replies[c] for c in who])
        s = found["score"] if self.private else game.accuracies(self.task, found["w"], exam)
        state, p = self.weigh(state, who, s, found["f"], turn)
        if self.private:
            w = yield average(self.hand_in, who, weights=dict(zip(who, p.tolist(), strict=True)))
        else:
            w = found["w"].map(lambda v, _: torch.tensordot(p, v.double(), dims=1).to(v.dtype))
        if self.reward == "paper":
            loss = p.float() @ found["f"]  # F(W(t+1)) of equation 1
        else:
            loss = game.outlook(self.task, partial(self.task.predict, w), proxy)[0]
        return state | {"w": w, "r": self.server_scale * self.worth(loss)}

    def weigh(
        self, state: Tree, who: Sequence[Client], scores: Tensor, f: Tensor, turn: Turn
    ) -> tuple[Tree, Tensor]:
        """The server's move: remember what the last one led to, learn, and choose p for those who answered."""
        seats, mind = self.seats(state, turn), self.server(len(state["s"]))
        at = torch.tensor([seats[c] for c in who])
        s = state["s"].index_put((at,), scores)  # an absent client keeps its last accuracy
        r = state["r"] + self.server_mix * self.worth(f).mean()
        a, agent = game.move(state["agent"], (state["s"], state["a"], r), s, turn.seed, mind)
        here = torch.zeros(len(s), dtype=torch.bool).index_fill(0, at, True)
        p = game.shares(torch.ones_like(a) if "p" in self.fixed else a, here)[at]
        return state | {"agent": agent, "s": s, "a": a, "seats": seats}, p

    def seats(self, state: Tree, turn: Turn) -> dict[Client, int]:
        members, many = {*turn.clients, *turn.cohort}, len(state["s"])
        try:
            return game.seated(state["seats"], members, many)
        except ValueError as e:
            raise Unfit(
                f"page's server has {many} seats for clients, and there are {len(members)}.\n"
                f"hint: method.capacity={2 * len(members)}, from the start of the run"
            ) from e

    def proxy(self, turn: Turn) -> Batch:
        if turn.proxy is None or not len(turn.proxy):
            raise Unfit(
                "page's server scores models on examples of its own, and it has none.\n"
                "hint: data.proxy=0.2 gives it a fifth of the federation's own test set; data without such a set "
                "need data.exam=0.2 data.proxy=0.5"
            )
        if self.task.statistics == "local":
            raise Unfit(
                "page's server scores models, and cannot where batch statistics are local: it has none.\n"
                "hint: net.norm=group, or net.statistics=averaged"
            )
        proxy: Batch = turn.proxy
        return proxy

    def general(self, state: Tree) -> Vec:
        w: Vec = state["w"]
        return w

    def view(self, state: Tree, client: Client) -> Tree:
        return state["w"]

    # ---- a client ----

    def join(self, data: Data) -> Tree:
        most = torch.tensor(self.budget or (self.epochs_max,)).clamp(max=self.epochs_max)
        return {
            "agent": agents.born(self.client, data.seed), "w": self.task.w0, "most": most[data.dice(1)[0] % len(most)],
            "s": torch.zeros(1), "a": torch.zeros(2), "r": torch.zeros(()), "now": torch.zeros(1),
        }  # fmt: skip

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        w, s, r = sent["w"], keep["now"], keep["r"]
        if self.client_mix:
            r = r + self.client_mix * self.worth(game.outlook_at_home(self.task, w, data)[0])
        last = keep["s"], keep["a"], r  # the very first move is not remembered: no state came before it
        a, agent = game.move(keep["agent"], last, s, data.seed, self.client, since=1)
        own = self.descend(w, data, *self.choice(a, keep["most"]))
        f, now = game.outlook_at_home(self.task, own, data)
        r = self.client_scale * self.worth(f)
        keep = keep | {"agent": agent, "w": own, "s": s, "a": a, "r": r, "now": now[None]}
        if not self.private:
            return {"w": own, "f": f}, keep
        exam = Batch.of(*sent["proxy"])
        return {"score": game.outlook(self.task, partial(self.task.predict, own), exam)[1], "f": f}, keep

    @verb
    def hand_in(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        """The model that `train` made; it is only asked for where the server learns nothing but the mean."""
        return keep["w"], keep

    def choice(self, a: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rate and epochs: [-1, 1] onto lr_min … lr_max and 1 … most."""
        eta, alpha = game.onto(a[0], self.lr_min, self.lr_max), game.onto(a[1], 1, most).round().long()
        eta = torch.full_like(eta, self.lr_max) if "eta" in self.fixed else eta
        return eta, most if "alpha" in self.fixed else alpha

    def descend(self, w: Vec, data: Data, lr: Tensor, epochs: Tensor) -> Vec:
        return descend(
            self.task.loss, w, data, lr=lr, epochs=epochs, batch=self.batch,
            momentum=self.momentum, decay=self.decay, clip=self.clip or None,
        )  # fmt: skip

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        own: Vec = keep["w"]  # who has not trained yet has the global model
        return partial(self.task.predict, own.where(keep["agent"]["acted"] > 0, w))

    def trained(self, sent: Tree, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, keep["w"])

    # ---- both ----

    def worth(self, loss: Tensor) -> Tensor:
        return 1 / (self.eps + loss)

    @property
    def client(self) -> agents.Settings:
        return self.mind(1, 2)

    def server(self, many: int) -> agents.Settings:
        return self.mind(many, many, sigma=0.0)  # it acts without noise

    def mind(self, states: int, actions: int, sigma: float = 0.2) -> agents.Settings:
        return agents.Settings(
            states, actions, actor=tuple(self.actor), critic=tuple(self.critic), actor_lr=self.actor_lr,
            critic_lr=self.critic_lr, gamma=self.gamma, tau=self.tau, batch=self.recall, capacity=self.memory,
            warm_up=_NEVER if self.random else self.warm_up, decay=self.fade, sigma=sigma,
        )  # fmt: skip
