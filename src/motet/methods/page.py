"""PAGE: clients choose how they train, then the server chooses whom to trust; both learn what pays.

Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", sections
4.1 to 4.4, Algorithms 1 and 2. Clients lead with epochs alpha_i and learning rate eta_i, the server
follows with weights p_i, W(t+1) = sum p_i w_i, and each has an agent (DDPG):

          state                                   action         reward
client    accuracy of its last w_i, validation    alpha, eta     1 / f_i(w_i), validation
server    accuracy of every w_i, proxy set        p_1 … p_N      1 / loss of W(t+1), proxy set

A client's model is w_i as its training left it. Without a validation set of its own it takes its
training examples.

Differs from the paper, by default (what it reads as: looks 1, floor 0, opening 0, steady false, warm_up 1 or
36, eps 1e-5, gamma 0.99, jolt 0.01, fade 500; what its authors' code does: `as_published`):
- The server plays several p in its head before it plays one (`looks`, parts/follower.py), and nobody weighs
  less than a quarter of anybody else (`floor`).
- Clients' agents start near the upper ends, where everybody's training is without agents (`opening`), and not
  with rounds at random; their noise changes from round to round (`jolt`).
- Agents learn from what a round pays (`gamma` 0), from how a reward differs from those just before, and by the
  spread of that (`steady`, parts/agents.py).
- The server's reward is how W(t+1) does on the proxy set, as in the authors' code. The paper's
  1 / sum p_i f_i(w_i) (`reward = "paper"`) is largest with all weight on the client of the lowest loss.
- `client_mix` rewards a client for the next model it receives, and `server_mix` the server for what clients
  earn in the round after its choice, the first that its choice can change.
- Clients may be absent, come late, or have no time: the server's agent has seats, of which the absent weigh
  nothing; who misses a round's `deadline` is absent in it, and earns nothing.
- Unless `private`, the server takes the mean itself, so that a guard's robust mean has no part in it.

`as_published` is what the authors' code does: a client's state is the accuracy of the model it received,
a round late; actions are cut off at the ends of [eta_min, eta_max], which after the warm-up leaves most at the
upper ends; memory holds what they were cut to; p is chosen before the round's models are seen. Left out is
that all its states and rewards come from the test examples: no verb here is given any. Off as well are the
code's fan-in (parts/agents.py) and its batches without remainders.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.client import Batch, Data, descend
from motet.core import (
    Client,
    Count,
    Method,
    MethodUnfit,
    NoReply,
    NotNegative,
    Positive,
    Share,
    Talk,
    Tree,
    Turn,
    average,
    collect,
    verb,
)
from motet.parts import agents
from motet.parts import games as game
from motet.parts.follower import Follower, unfit
from motet.parts.leader import Leader
from motet.vec import Vec, stack

_NEVER = 1 << 60  # rounds until agents act on their own, if they never do
_MEMORY = 1000  # rounds that are remembered where nobody says how long a run is


class PAGE(Method):
    lr_min: Positive = 0.03  # smallest local learning rate that a client can choose (eta)
    lr_max: Positive = 0.3  # largest
    epochs_max: Count = 10  # most local epochs that it can choose (alpha)
    batch: Count = 16  # examples in a local step
    momentum: Share = 0.0  # of local steps; forgotten between rounds
    decay: NotNegative = 0.0  # weight decay
    clip: NotNegative = 0.0  # longest gradient allowed; 0 = any
    reward: Literal["proxy", "paper"] = "proxy"  # the server's: by its proxy set, or by clients' losses
    eps: Positive = 0.01  # added to a loss before it is inverted
    client_scale: Positive = 1.0  # clients' rewards are multiplied by this,
    server_scale: Positive = 1.0  # and the server's by this; both leave what is best where it is
    client_mix: NotNegative = 0.0  # what the global model's 1/f_i(W) counts in a client's reward
    server_mix: NotNegative = 0.0  # what clients' mean reward counts in the server's
    looks: Count = 8  # choices of p that the server plays in its head in a round; 1 = only its agent's
    stride: Positive = 0.1  # how far apart two of them are, where actions are in [-1, 1]
    floor: Share = 0.25  # least weight of a client, as a part of the largest
    fixed: tuple[Literal["eta", "alpha", "p"], ...] = ()  # held constant: lr_max, epochs_max, equal weights
    random: bool = False  # all actions are drawn, to see what learning is worth
    private: bool = False  # the proxy set is public: clients score themselves, and only a mean model is seen
    as_published: bool = False  # as the authors' code, but for test examples: see the module's docstring
    budget: tuple[Count, ...] = ()  # epochs a client can afford, one drawn as it joins; () = epochs_max
    speeds: tuple[Positive, ...] = (1.0,)  # epochs a client does in a unit of time, one drawn as it joins
    deadline: NotNegative = 0.0  # units of time in a round; who takes longer is absent in it; 0 = none
    glance: Annotated[int, ">= 0"] = 500  # proxy rows on which each client's model is scored; 0 = all
    capacity: Annotated[int, ">= 0"] = 0  # seats of the server's agent; 0 = twice the clients at the start
    actor: tuple[Count, ...] = (40, 30)  # sizes of the actors' hidden layers
    critic: tuple[Count, ...] = (40, 30)  # and of the critics'
    actor_lr: Positive = 0.0005  # the actors' learning rate (Adam)
    critic_lr: Positive = 0.005  # the critics'
    gamma: Share = 0.0  # what a reward is worth a round later; the paper's is 0.99
    tau: Share = 0.005  # how far the target networks follow in a round (beta)
    recall: Count = 32  # memories that an agent learns from in a round
    memory: Annotated[int, ">= 0"] = 0  # what an agent can remember; 0 = a run's rounds, at most 60,000
    opening: Share = (
        0.9  # where clients' actions start: 0 = in the middle of their ranges, 1 = at the upper ends
    )
    steady: bool = True  # agents learn from how rewards differ from those just before, by the spread of that
    jolt: Positive = 1.0  # how fast the noise on clients' actions changes, time between two of them
    sigma: NotNegative = 0.2  # and how loud it is
    warm_up: Annotated[int, ">= 0"] = 0  # first rounds with actions at random
    fade: Annotated[int, ">= 0"] = 200  # rounds until the noise on clients' actions has faded; 0 = never

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        if wrong := unfit(turn.proxy, self.task.statistics, self.considered, self.private):
            raise MethodUnfit(wrong)
        many = self.capacity or 2 * len(turn.clients)
        me = self.server(many).newborn(turn.seed)
        return me | {"w": self.task.w0, "now": torch.zeros(many), "seats": {}, "told": {}}

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        proxy = game.every(turn.proxy, self.glance)
        sent = {"w": state["w"], "proxy": (proxy.x, proxy.y) if self.private else ()}
        # Every reply and not their mean: the server answers to each of the round's models with its weight.
        replies = yield collect(self.train, turn.cohort, send=sent)
        if not replies:
            raise NoReply(f"page, round {turn.number}: nobody answered; hint: is the cohort empty?")
        who = sorted(c for c, said in replies.items() if not said["late"])
        if not who:
            return state  # nobody is waited for
        found, seats = stack([replies[c] for c in who]), self.seats(state, turn)
        at, f = torch.tensor([seats[c] for c in who]), found["f"]
        score = found["score"] if self.private else game.accuracies(self.task, found["w"], proxy)
        now = state["now"].index_put((at,), score)  # an absent client keeps its last accuracy
        p, me = self.server(len(now)).plays(
            state, state["now"] if self.as_published else now, at,
            lambda p: self.earned(game.mixture(found["w"], p), p, f, turn.proxy),
            self.server_mix * self.worth(f).mean(), turn.seed,
        )  # fmt: skip
        p = torch.full_like(p, 1 / len(p)) if "p" in self.fixed else p
        if self.private:
            w = yield average(self.hand_in, who, weights=dict(zip(who, p.tolist(), strict=True)))
        else:
            w = game.mixture(found["w"], p)
        r = self.earned(w, p, f, turn.proxy)
        told = {"server": r, "clients": self.worth(f).mean(), "counted": 1 / p.square().sum()}
        return me | {"w": w, "r": r, "now": now, "seats": seats, "told": told}

    def earned(self, w: Vec, p: Tensor, f: Tensor, proxy: Batch) -> Tensor:
        """The server's reward for W(t+1) = w."""
        if self.reward == "paper":
            return self.server_scale * self.worth(p.float() @ f)  # F(W(t+1)) of equation 1
        loss = game.outlook(self.task, partial(self.task.predict, w), proxy)[0]
        return self.server_scale * self.worth(loss)

    def seats(self, state: Tree, turn: Turn) -> dict[Client, int]:
        members, many = {*turn.clients, *turn.cohort}, len(state["now"])
        if (seats := game.seated(state["seats"], members, many)) is None:
            raise MethodUnfit(
                f"page's server has {many} seats for clients, and there are {len(members)}.\n"
                f"hint: method.capacity={2 * len(members)}, from the start of the run"
            )
        return seats

    def global_model(self, state: Tree) -> Vec:
        w: Vec = state["w"]
        return w

    def download(self, state: Tree, client: Client) -> Tree:
        return state["w"]

    def metrics(self, state: Tree) -> dict[str, float]:
        """Rewards of the server and, on average, of clients; how many clients of equal weight count as much as p."""
        return {k: float(v) for k, v in state["told"].items()}

    # ---- a client ----

    def join(self, data: Data) -> Tree:
        budget = [min(epochs, self.epochs_max) for epochs in self.budget or (self.epochs_max,)]
        return {"w": self.task.w0} | self.client.newborn(data.seed, budget, self.speeds, data.dice(2))

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        w = sent["w"]
        f_w, right_w = torch.zeros(2)
        if self.client_mix or self.as_published:
            f_w, right_w = game.outlook_at_home(self.task, w, data)
        a, keep = self.lead(sent, keep, self.client_mix * self.worth(f_w), data.seed)
        eta, alpha = self.client.choice(a, keep)
        own = self.descend(w, data, eta, alpha)
        f, right = game.outlook_at_home(self.task, own, data)
        late = self.client.late(alpha, keep)
        keep = keep | {"w": own, "r": self.client_scale * self.worth(f) * ~late, "now": right[None]}
        if self.as_published:
            keep = keep | {"a": torch.stack([eta, alpha.float()]), "now": right_w[None]}
        if not self.private:
            return {"w": own, "f": f, "late": late}, keep
        score = game.outlook(self.task, partial(self.task.predict, own), Batch.of(*sent["proxy"]))[1]
        return {"score": score, "f": f, "late": late}, keep

    def lead(self, sent: Tree, keep: Tree, bonus: Tensor, seed: Tensor) -> tuple[Tensor, Tree]:
        """A client's move: remember what the last one led to, learn, and act."""
        return self.client.plays(keep, bonus, seed)

    @verb
    def hand_in(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        """The model that `train` made; it is only asked for where the server learns nothing but the mean."""
        return keep["w"], keep

    def descend(self, w: Vec, data: Data, lr: Tensor, epochs: Tensor) -> Vec:
        return descend(
            self.task.loss, w, data, lr=lr, epochs=epochs, batch=self.batch,
            momentum=self.momentum, decay=self.decay, clip=self.clip or None,
        )  # fmt: skip

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        own: Vec = keep["w"]  # who has not trained yet has the global model
        return partial(self.task.predict, own.where(keep["agent"]["acted"] > 0, w))

    def trained_model(self, sent: Tree, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, keep["w"])

    # ---- both ----

    def worth(self, loss: Tensor) -> Tensor:
        return 1 / (self.eps + loss)

    @property
    def considered(self) -> int:
        """Choices of p in a round."""
        return 1 if self.random or self.as_published or "p" in self.fixed else self.looks

    @property
    def client(self) -> Leader:
        if self.as_published:
            mind = self.mind(1, 2, sigma=0.2, dt=0.01)
        else:
            mind = self.mind(1, 2, sigma=self.sigma, dt=self.jolt, anchor=min(self.opening, 0.999))
        return Leader(mind, self.lr_min, self.lr_max, tuple(self.fixed), self.deadline, self.as_published)

    def server(self, many: int) -> Follower:
        floor = 0.0 if self.as_published or self.random else self.floor
        mind = self.mind(many, many, sigma=0.0)  # it acts without noise
        return Follower(mind, self.considered, self.stride, floor, self.as_published)

    def mind(
        self, states: int, actions: int, sigma: float, dt: float = 0.01, anchor: float = 0.0
    ) -> agents.AgentSettings:
        plain = self.as_published
        gamma, warm_up, fade = (0.99, 36, 500) if plain else (self.gamma, self.warm_up, self.fade)
        warm_up = _NEVER if self.random else warm_up
        return agents.AgentSettings(
            states, actions, actor=tuple(self.actor), critic=tuple(self.critic), actor_lr=self.actor_lr,
            critic_lr=self.critic_lr, gamma=gamma, tau=self.tau, batch=self.recall, warm_up=warm_up,
            capacity=self.memory or _MEMORY, decay=fade, steady=self.steady and not plain,
            sigma=sigma, dt=dt, anchor=anchor,
        )  # fmt: skip
