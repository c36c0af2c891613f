"""Agents at clients: each chooses its learning rate and epochs from how the model that it receives does.

Dap-FL's agents (methods/dapfl.py), alone or around another method: `AgentsAround` goes before a method of FedAvg's
kind, whose clients then train as their agents chose. What clients send and what its server does is the method's own.
Knows agents, rates and epochs. Does not know what clients train by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Method, MethodUnfit, NotNegative, Rate, Talk, TenthRate, Tree, Turn, verb
from motet.parts import agents, games
from motet.parts.agents import AgentSettings, AgentSpec
from motet.parts.game_around import NOT_SET, Chosen, ChosenData
from motet.parts.groups_around import refuse_more_verbs, refuse_other_rounds, refuse_same_settings
from motet.vec import Vec

CHOOSING = (
    "agents need clients that train as FedAvg's do and do nothing else, with a rate and epochs to choose"
)
FITTING = "hint: around a method whose clients train the model that they are sent, say method=fedprox+dapfl"
_AGENT = AgentSettings(
    actor_lr=0.001, critic_lr=0.01, tau=0.001, batch_size=2, capacity=256, warm_up=1, noise_decay=500
)


class LocalAgents(Method):
    """Settings of agents, and what one does in a round."""

    beyond_budget = "losses are measured on rows, and agents choose numbers of steps by them"

    lr_min: TenthRate = 0.03  # smallest learning rate that an agent can choose; auto: a tenth of lr_max
    # The scale in between is logarithmic.
    lr_max: Rate = 0.3  # largest learning rate that an agent can choose; auto = safe for network and data
    epochs_max: Count = 10  # largest number of local epochs that an agent can choose
    praise: NotNegative = 2.0  # weight of a gain in accuracy in the reward; a drop of the loss has weight 1
    agent: AgentSettings = _AGENT  # the agents of the clients (DDPG)

    def new_agent(self, data: Data) -> Tree:
        """What an agent remembers before its first round."""
        return {"agent": agents.initial(self.spec, data.seed), "s": torch.zeros(2), "a": torch.zeros(2)}

    def act(self, received: Any, me: Tree, data: Data) -> tuple[Tensor, Tensor, Tree]:
        """Learning rate, epochs, and what the agent remembers."""
        s = self.state(received, data)
        gain = (s - me["s"]) @ torch.tensor([-1.0, self.praise])
        a, agent = games.move(me["agent"], (me["s"], me["a"], gain), s, data.seed, self.spec)
        return *self.choice(a), {"agent": agent, "s": s, "a": a}

    def state(self, received: Any, data: Data) -> Tensor:
        """Loss and accuracy of the received predictor on the client's training examples."""
        return games.loss_and_accuracy(self.task, self.task.at_home(received, data), data.all)

    def choice(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Learning rate and epochs: [-1, 1] onto lr_min … lr_max and 1 … epochs_max."""
        u = (a + 1) / 2
        lr = self.lr_min * (self.lr_max / self.lr_min) ** u[0]
        return lr, (self.epochs_max * u[1]).long().clamp(min=1)

    @property
    def spec(self) -> AgentSpec:
        return self.agent.sized(states=2, actions=2)


class AgentsAround(LocalAgents):
    """The parts of a method that differ where agents choose how its clients train."""

    def start(self, turn: Turn) -> Tree | Talk:
        state = super().start(turn)
        if not isinstance(self.received(state), Vec):
            raise MethodUnfit(
                f"{type(self).__name__}: agents look at the model that clients are sent, and this method's server "
                f"keeps something else.\n{FITTING}"
            )
        return state

    def received(self, sent: Tree) -> Any:
        """The shared model in what a client is sent."""
        return sent if isinstance(sent, Vec) or not isinstance(sent, dict) else self.global_model(sent)

    def join(self, data: Data) -> Tree:
        return {"me": self.new_agent(data), "inner": super().join(data)}

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        received = super().personal(self.received(sent), keep["inner"], data)
        eta, alpha, me = self.act(received, keep["me"], data)
        chosen = ChosenData(**vars(data), eta=eta, alpha=alpha)
        reply, kept = super().train(sent, keep["inner"], chosen)  # type: ignore[misc]
        return reply, {"me": me, "inner": kept}

    def personal(self, view: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        kept = keep["inner"] if isinstance(keep, dict) and "me" in keep else keep
        return super().personal(view, kept, data)

    def trained_model(self, sent: Tree, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return super().trained_model(sent, reply, keep["inner"], data)

    @classmethod
    def made(cls, base: type[Method], plain: type[Method], name: str) -> type[Method]:
        """The class of agents around a method."""
        refuse_more_verbs(base, plain, CHOOSING, FITTING)
        refuse_other_rounds(base, plain, ("epochs_at_evaluation", "alone"))
        refuse_same_settings(base, LocalAgents, plain, name, FITTING)
        if base.__dataclass_fields__["lr"].type != plain.__dataclass_fields__["lr"].type:
            raise MethodUnfit(
                f"{base.__name__}: its learning rate is not that of steps on the task's loss, which agents choose.\n"
                f"{FITTING}"
            )
        said = {
            "__doc__": f"{base.__doc__}\n    With agents that choose rate and epochs ({name}).",
            "__module__": base.__module__,
            "__annotations__": dict.fromkeys(NOT_SET, ClassVar[Any]),
            "strength": base.strength,
            "epochs": 1,
            "lr": 0.0,
        }
        return type(f"{base.__name__}{name}", (AgentsAround, Chosen, base), said)
