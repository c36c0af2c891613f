"""Dap-FL: FedAvg in which an agent at each client chooses its learning rate and epochs."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, NotNegative, Rate, Talk, TenthRate, Tree, Turn, average, verb
from motet.methods.fedavg import LocalSGD
from motet.parts import agents, games
from motet.parts.agents import AgentSettings, AgentSpec
from motet.vec import Vec

_AGENT = AgentSettings(
    actor_lr=0.001, critic_lr=0.01, tau=0.001, batch_size=2, capacity=256, warm_up=1, noise_decay=500
)


class DapFL(LocalSGD):
    """Dap-FL: FedAvg in which an agent at each client chooses its learning rate and epochs.

    Chen et al. 2022, "Dap-FL: Federated Learning flourishes by adaptive tuning and secure aggregation", its adaptive
    hyper-parameter selection scheme. The agent (DDPG) sees the loss and the accuracy of the received model on the
    client's own training examples. Its reward is how much these have improved since the model received before. It
    never leaves the client.

    Differs from the paper:
    - With one label for each example, micro-F1 is the accuracy. The state is (loss, accuracy), and a gain
      in accuracy counts twice (`praise`), as the two scores do there. Where targets are numbers, 1 / (1 + loss)
      stands for the accuracy: it is R² to first order where targets have variance 1.
    - Replies are not encrypted; the paper has the Paillier cryptosystem.
    - There is no cost critic: the cost in the authors' code is drawn at random.
    - Ranges, sizes and rates are settings. The paper's: lr_min 1e-4, lr_max 1e-2, epochs_max 40 and, in agent,
      actor [10, 5], critic [5] with state_layers 0, hidden tanh, actor_lr 1e-5, critic_lr 1e-4, capacity 10000.
    As re-implemented in PAGE: praise 1, weighting "equal", epochs_max 20, in agent noise_decay 0, batch_size 32,
    warm_up 36, and the task's rates. Its use of test examples, its loss after training and its linear scale of
    learning rates are not offered.
    """

    lr_min: TenthRate = 0.03  # smallest learning rate that an agent can choose; auto: a tenth of lr_max
    # The scale in between is logarithmic.
    lr_max: Rate = 0.3  # largest learning rate that an agent can choose; auto = safe for network and data
    epochs_max: Count = 10  # largest number of local epochs that an agent can choose
    weighting: Literal["examples", "equal"] = "examples"  # weights of clients in the mean
    praise: NotNegative = 2.0  # weight of a gain in accuracy in the reward; a drop of the loss has weight 1
    agent: AgentSettings = _AGENT  # the agents of the clients (DDPG)

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        equal = dict.fromkeys(turn.cohort, 1.0) if self.weighting == "equal" else None
        return (yield average(self.train, turn.cohort, send=w, weights=equal))

    def join(self, data: Data) -> Tree:
        return {"agent": agents.initial(self.spec, data.seed), "s": torch.zeros(2), "a": torch.zeros(2)}

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        s = self.state(w, data)
        gain = (s - keep["s"]) @ torch.tensor([-1.0, self.praise])
        a, agent = games.move(keep["agent"], (keep["s"], keep["a"], gain), s, data.seed, self.spec)
        lr, epochs = self.choice(a)
        w = self.descend(self.task.loss, w, data, lr=lr, epochs=epochs)
        return w, {"agent": agent, "s": s, "a": a}

    def state(self, w: Vec, data: Data) -> Tensor:
        """Loss and accuracy of the received model on the client's training examples."""
        received = self.task.at_home(partial(self.task.predict, w), data)
        return games.loss_and_accuracy(self.task, received, data.all)

    def choice(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rate and epochs: [-1, 1] onto lr_min … lr_max and 1 … epochs_max."""
        u = (a + 1) / 2
        lr = self.lr_min * (self.lr_max / self.lr_min) ** u[0]
        return lr, (self.epochs_max * u[1]).long().clamp(min=1)

    @property
    def spec(self) -> AgentSpec:
        return self.agent.sized(states=2, actions=2)
