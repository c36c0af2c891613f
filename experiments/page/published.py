"""PAGE as its authors' code has it: `method=experiments.page.published:PublishedPAGE`."""

from __future__ import annotations

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Count, Positive, Share, Tree, verb
from motet.methods.page import PAGE
from motet.parts import games
from motet.parts.agents import AgentSettings
from motet.parts.follower import Follower, Me, Reward
from motet.vec import Vec


class PublishedPAGE(PAGE):
    """PAGE as its authors' code has it, except that no agent sees a test example.

    Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", the code.
    A client's state is the accuracy of the model that it received, one round late. Actions are cut off at the ends
    of [lr_min, lr_max], which leaves most of them at the upper ends once the warm-up is over, and the memory holds
    what they were cut to. The server chooses p before it sees the round's models, compares no candidates and has
    no floor.
    Differs from the code: all states and rewards there come from the test examples; its fan-in (parts/agents.py)
    and its batches without remainders are left out.
    """

    candidates: Count = 1  # must be 1: the server compares no choices of p
    floor: Share = 0.0  # must be 0: a client may have no weight at all
    eps: Positive = 1e-5  # added to every loss before it is inverted to a reward
    agent: AgentSettings = AgentSettings()  # the agents of the server and of the clients (DDPG)

    def unused(self) -> dict[str, str]:
        fixed = ("candidates", "floor", "epochs_min", "step_max", "step_rule", "lr_scale", "player")
        return super().unused() | dict.fromkeys(fixed, "PAGE as published has no such choice")

    def server(self, many: int) -> Follower:
        return PublishedFollower(self.agent.sized(many, many, sigma=0.0))

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, keep = super().train(w, keep, data)
        eta, alpha = self.ranges(keep["a"], keep)
        accuracy = games.local_loss_and_accuracy(self.task, w, data)[1]
        return reply, keep | {"a": torch.stack([eta, alpha.float()]), "now": accuracy[None]}

    def ranges(self, a: Tensor, keep: Tree) -> tuple[Tensor, Tensor]:
        warm = keep["agent"]["acted"] <= self.agent.warm_up
        return cut_off(a, warm, self.lr_min, self.lr_max, torch.tensor(self.epochs_max))


class PublishedFollower(Follower):
    """A server that acts on the accuracies of the round before, and remembers weights instead of actions."""

    def move(
        self, me: Me, s: Tensor, at: Tensor, reward: Reward, bonus: Tensor, seed: int
    ) -> tuple[Tensor, Me]:
        p, after = super().move(me, me["now"], at, reward, bonus, seed)
        return p, after | {"a": torch.zeros_like(s).index_put((at,), p.to(s.dtype))}


def cut_off(a: Tensor, warm: Tensor, low: float, high: float, most: Tensor) -> tuple[Tensor, Tensor]:
    """Learning rate and epochs as in PAGE's code: (a + 1) / 2 cut off at low and high. Its second number is
    multiplied so that `high` stands for `most` epochs. While `warm`, the whole of [-1, 1] is between low and high.

    >>> cut_off(torch.tensor([0.0, -0.9]), torch.tensor(False), 0.001, 0.1, torch.tensor(20))
    (tensor(0.1000), tensor(10))
    """
    u = torch.where(warm, games.rescale(a, low, high), games.rescale(a, 0, 1).clamp(low, high))
    return u[0], (u[1] * torch.floor(most / high + 1e-4)).clamp(min=1).minimum(most).long()
