"""Dap-FL: as FedAvg, with an agent at each client that chooses its learning rate and epochs.

Chen et al. 2022, "Dap-FL: Federated Learning flourishes by adaptive tuning and secure aggregation".
The agent (DDPG) sees how the received model does on the client's own training examples, and is
rewarded with what has improved since the model received before. It is kept and never sent.

Differs from the paper:
- With one label for each example, micro-F1 is the accuracy. The state is (loss, accuracy), and a gain
  in accuracy counts twice (`praise`), as its two scores do there. For numbers, 1 / (1 + loss) stands in
  for the accuracy: it is R² to first order where targets have variance 1.
- There is no cost critic: the cost in the authors' code is drawn at random.
- Ranges, sizes and rates are settings. The paper's: lr_min 1e-4, lr_max 1e-2, epochs_max 40, actor
  (10, 5), critic (5,) with meet 0, hidden tanh, actor_lr 1e-5, critic_lr 1e-4, memory 10000.
As re-implemented in PAGE: praise 1, weighting "equal", fade 0, recall 32, warm_up 36, epochs_max 20 and
the task's rates; not offered are its test examples, its loss after training, its linear scale of rates.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.client import Data, descend
from motet.core import Count, Method, NotNegative, Positive, Share, Talk, Tree, Turn, average, verb
from motet.parts import agents
from motet.parts import games as game
from motet.vec import Vec


class DapFL(Method):
    lr_min: Positive = 0.03  # smallest local learning rate that an agent can choose
    lr_max: Positive = 0.3  # largest; between them the scale is logarithmic
    epochs_max: Count = 10  # most local epochs that it can choose
    batch: Count = 16  # examples in a local step
    momentum: Share = 0.0  # of local steps; forgotten between rounds
    decay: NotNegative = 0.0  # weight decay
    clip: NotNegative = 0.0  # longest gradient allowed; 0 = any
    weighting: Literal["examples", "equal"] = "examples"  # what a client counts in the mean
    praise: NotNegative = 2.0  # reward for a gain in accuracy; a drop of the loss counts 1
    actor: tuple[int, ...] = (40, 30)  # sizes of the actor's hidden layers
    critic: tuple[int, ...] = (40, 30)  # and of the critic's
    meet: Annotated[int, ">= 0"] = 1  # how many of them see the state alone
    hidden: Literal["relu", "tanh"] = "relu"  # what follows a hidden layer
    actor_lr: Positive = 0.001  # the actor's learning rate (Adam)
    critic_lr: Positive = 0.01  # the critic's
    gamma: Share = 0.99  # what a reward is worth a round later
    tau: Share = 0.001  # how far the target networks follow in a round
    recall: Count = 2  # memories that an agent learns from in a round
    memory: Count = 256  # rounds that it remembers
    warm_up: Annotated[int, ">= 0"] = 1  # first rounds with actions at random
    fade: Annotated[int, ">= 0"] = 500  # rounds until the noise on actions has faded; 0 = never

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        equal = dict.fromkeys(turn.cohort, 1.0) if self.weighting == "equal" else None
        return (yield average(self.train, turn.cohort, send=w, weights=equal))

    def join(self, data: Data) -> Tree:
        return {"agent": agents.born(self.mind, data.seed), "s": torch.zeros(2), "a": torch.zeros(2)}

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        agent, s = keep["agent"], self.state(w, data)
        gain = (s - keep["s"]) @ torch.tensor([-1.0, self.praise])
        agent = agents.remember(agent, keep["s"], keep["a"], gain, s, when=agent["acted"] > 0)
        agent = agents.learn(agent, data.seed, self.mind)
        a, agent = agents.act(agent, s, data.seed, self.mind)
        return self.descend(w, data, *self.choice(a)), {"agent": agent, "s": s, "a": a}

    def state(self, w: Vec, data: Data) -> Tensor:
        """Loss and accuracy of the received model on the client's training examples."""
        received = self.task.at_home(partial(self.task.predict, w), data)
        return game.outlook(self.task, received, data.all)

    def choice(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rate and epochs: [-1, 1] onto lr_min … lr_max and 1 … epochs_max."""
        u = (a + 1) / 2
        lr = self.lr_min * (self.lr_max / self.lr_min) ** u[0]
        return lr, (self.epochs_max * u[1]).long().clamp(min=1)

    def descend(self, w: Vec, data: Data, lr: Tensor, epochs: Tensor) -> Vec:
        return descend(
            self.task.loss, w, data, lr=lr, epochs=epochs, batch=self.batch,
            momentum=self.momentum, decay=self.decay, clip=self.clip or None,
        )  # fmt: skip

    @property
    def mind(self) -> agents.AgentSettings:
        return agents.AgentSettings(
            states=2, actions=2, actor=tuple(self.actor), critic=tuple(self.critic), meet=self.meet,
            hidden=self.hidden, actor_lr=self.actor_lr, critic_lr=self.critic_lr, gamma=self.gamma,
            tau=self.tau, batch=self.recall, capacity=self.memory, warm_up=self.warm_up, decay=self.fade,
        )  # fmt: skip
