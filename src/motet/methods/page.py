"""PAGE: clients choose how they train, the server chooses how much each of them counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from motet.client import Data
from motet.core import (
    Client,
    Count,
    Method,
    MethodUnfit,
    NoReply,
    NotNegative,
    Positive,
    Rate,
    Talk,
    TenthRate,
    Tree,
    Turn,
    collect,
    verb,
)
from motet.methods.fedavg import FedAvg, LocalSGD
from motet.parts import games
from motet.parts.agents import AgentSpec
from motet.parts.following_server import FollowingServer
from motet.parts.game_around import FITTING, REPLACED, GameAround
from motet.parts.groups_around import refuse_more_verbs
from motet.parts.local_agents import CHOOSING
from motet.vec import Vec


class PAGE(FollowingServer, LocalSGD):
    """PAGE: clients choose how they train, the server chooses how much each of them counts.

    Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", sections
    4.1 to 4.4, Algorithms 1 and 2. Clients lead the game with epochs alpha_i and learning rate eta_i. The server
    follows with weights p_i, W(t+1) = sum p_i w_i (parts/following_server.py). Each player has an
    agent (DDPG, parts/agents.py):

              state                                       action         reward
    client    accuracy of its last w_i, validation set    eta, alpha     1 / f_i(w_i), validation set
    server    accuracy of every w_i, proxy set            p_1 … p_N      1 / loss of W(t+1), proxy set

    A client's model is w_i as its training left it. A client without validation examples takes its training
    examples.

    Differs from the paper, by default (to have it as the paper reads: candidates 1, floor 0, eps 1e-5 and, in
    agent, initial_action 0, normalise_rewards false, warm_up 1 or 36, gamma 0.99, noise_rate 0.01, noise_decay 500;
    as in its authors' code: experiments/page/published.py, where private.py and deadlines.py are too):
    - The server compares several candidates of p before it chooses one (`candidates`, parts/follower.py), and no
      client has less than a quarter of another client's weight (`floor`).
    - The agents of clients start near the upper ends of their ranges, where methods without agents train, and not
      with random rounds (`initial_action`); their noise changes from round to round (`noise_rate`).
    - Agents learn from the reward of one round (`gamma` 0), and from normalised rewards (`normalise_rewards`).
    - The server's reward is how W(t+1) does on the proxy set, as in the authors' code. The paper's reward
      1 / sum p_i f_i(w_i) (`reward = "paper"`) is largest with all weight on the client of the lowest loss.
    - `client_mix` also rewards a client for the next model that it receives. `server_mix` also rewards the server
      for what clients earn in the round after its choice, which is the first round that its choice can change.
    - Clients may be absent: the server's agent has a seat for each client, and absent clients have no weight.
    - The server takes the mean itself, so a guard's robust mean has no effect.

    Beyond the paper, off by default: the server may go further than to the mean, W + s (sum p_i w_i - W) with s up to
    `step_max`; simpler players may take the agents' place (`player`, parts/players.py); and the game may go around
    another method's training, say method=feddyn+page (parts/game_around.py).
    """

    lr_min: TenthRate = 0.03  # smallest learning rate that a client can choose (eta); auto: a tenth of lr_max
    lr_max: Rate = 0.3  # largest learning rate that a client can choose; auto: safe for network and data
    epochs_min: Count = 1  # smallest number of local epochs that a client can choose (alpha)
    epochs_max: Count = 10  # largest number of local epochs that a client can choose
    client_scale: Positive = 1.0  # factor on the rewards of clients
    client_mix: NotNegative = 0.0  # weight of 1 / f_i(W), for the received model W, in a client's reward
    lr_scale: Literal["linear", "log"] = "linear"  # of eta between lr_min and lr_max

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same game, in which clients choose rate and epochs of another method's training."""
        refuse_more_verbs(base, FedAvg, CHOOSING, FITTING)
        if others := [name for name in REPLACED if getattr(base, name) is not getattr(FedAvg, name)]:
            raise MethodUnfit(
                f"{base.__name__} has {', '.join(others)} of its own, which would have no effect: the game has its "
                f"own in that place.\n{FITTING}"
            )
        return GameAround.made(cls, base)

    # ---- the server ----

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        # collect, not average: the server answers each client's model with a weight of its own.
        replies = yield collect(self.train, turn.cohort, send=state["w"])
        if not replies:
            raise NoReply(f"page, round {turn.number + 1}: nobody answered; hint: is the cohort empty?")
        return self.follow(state, turn, replies)

    def global_model(self, state: Tree) -> Vec:
        return state["w"]

    def download(self, state: Tree, client: Client) -> Tree:
        return state["w"]

    # ---- a client ----

    def join(self, data: Data) -> Tree:
        return {"w": self.task.w0} | games.initial_leader(self.leader(), data.seed)

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        f_w = self.loss_of(self.received(sent), data) if self.client_mix else torch.zeros(())
        a, keep = self.lead(keep, self.client_mix * self.worth(f_w), data.seed)
        eta, alpha = self.ranges(a, keep)
        reply, own, keep = self.trained(sent, keep, data, eta, alpha)
        f, accuracy = games.local_loss_and_accuracy(self.task, own, data)
        keep = keep | {"w": own, "r": self.client_scale * self.worth(f), "now": accuracy[None]}
        return reply | {"f": f}, keep

    def received(self, sent: Tree) -> Vec:
        return sent

    def loss_of(self, w: Vec, data: Data) -> Tensor:
        return games.local_loss_and_accuracy(self.task, w, data)[0]

    def trained(self, w: Tree, keep: Tree, data: Data, eta: Tensor, alpha: Tensor) -> tuple[Tree, Vec, Tree]:
        """What leaves, the client's own model w_i, and what it keeps."""
        own = self.descend(self.task.loss, w, data, lr=eta, epochs=alpha)
        return {"w": own}, own, keep

    def lead(self, keep: Tree, bonus: Tensor, seed: Tensor) -> tuple[Tensor, Tree]:
        """The client's action, and what it keeps: its agent first learns what the last action led to."""
        return games.lead(keep, bonus, seed, self.leader())

    def leader(self) -> AgentSpec:
        return self.agent.sized(states=1, actions=2, player=self.player)

    def ranges(self, a: Tensor, keep: Tree) -> tuple[Tensor, Tensor]:
        """eta and alpha: an action in [-1, 1]^2 onto lr_min … lr_max and epochs_min … epochs_max."""
        scale = games.rescale_log if self.lr_scale == "log" else games.rescale
        eta = scale(a[0], self.lr_min, self.lr_max)
        return eta, games.rescale(a[1], self.epochs_min, self.epochs_max).round().long()

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        own = keep["w"].where(keep["agent"]["acted"] > 0, w)  # who has not trained yet has the global model
        return partial(self.task.predict, own)

    def trained_model(self, w: Vec, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, keep["w"])
