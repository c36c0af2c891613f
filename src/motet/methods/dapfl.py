"""Dap-FL: FedAvg in which an agent at each client chooses its learning rate and epochs."""

from __future__ import annotations

from functools import partial
from typing import Literal

from motet.client import Data
from motet.core import Method, Talk, Tree, Turn, average, verb
from motet.methods.fedavg import FedAvg, LocalSGD
from motet.parts.local_agents import AgentsAround, LocalAgents
from motet.vec import Vec


class DapFL(LocalAgents, LocalSGD):
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

    weighting: Literal["examples", "equal"] = "examples"  # weights of clients in the mean

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same agents, which choose rate and epochs of another method's training."""
        return AgentsAround.made(base, FedAvg, cls.__name__)

    def round(self, w: Vec, turn: Turn) -> Tree | Talk:
        equal = dict.fromkeys(turn.cohort, 1.0) if self.weighting == "equal" else None
        return (yield average(self.train, turn.cohort, send=w, weights=equal))

    def join(self, data: Data) -> Tree:
        return self.new_agent(data)

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        lr, epochs, keep = self.act(partial(self.task.predict, w), keep, data)
        return self.descend(self.task.loss, w, data, lr=lr, epochs=epochs), keep
