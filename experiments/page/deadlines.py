"""PAGE with slow and poor clients: `method=experiments.page.deadlines:DeadlinePAGE`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Client, Count, NotNegative, Positive, Tree, Turn, verb
from motet.methods.page import PAGE
from motet.parts import games
from motet.vec import Vec


class DeadlinePAGE(PAGE):
    """PAGE in a simulation of clients that differ in speed and in how many epochs they can afford.

    Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", Algorithms 1
    and 2, as in motet.methods.page. Differs from the paper, in addition: each client draws a budget of epochs and
    a speed when it joins. A client whose epochs take longer than the deadline is absent in the round, and its
    reward is 0, so that its agent can learn to keep the deadline.
    """

    budget: tuple[Count, ...] = ()  # most epochs of a client, one of these is drawn for each; [] = epochs_max
    speeds: tuple[Positive, ...] = (
        1.0,
    )  # epochs of a client in a unit of time, one of these is drawn for each
    deadline: NotNegative = 0.0  # units of time in a round; slower clients count as absent; 0 = no deadline

    def join(self, data: Data) -> Tree:
        budget = torch.tensor([min(epochs, self.epochs_max) for epochs in self.budget or (self.epochs_max,)])
        speeds, dice = torch.tensor(self.speeds), data.dice(2)
        drawn = {"most": budget[dice[0] % len(budget)], "speed": speeds[dice[1] % len(speeds)]}
        return super().join(data) | drawn

    def ranges(self, a: Tensor, keep: Tree) -> tuple[Tensor, Tensor]:
        least = torch.tensor(self.epochs_min).minimum(keep["most"])
        return super().ranges(a, keep)[0], games.rescale(a[1], least, keep["most"]).round().long()

    @verb
    def train(self, w: Vec, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        reply, keep = super().train(w, keep, data)
        late = self.late(keep)
        return reply | {"late": late}, keep | {"r": keep["r"] * ~late}

    def late(self, keep: Tree) -> Tensor:
        """Whether the epochs of the last action take longer than the deadline."""
        _, alpha = self.ranges(keep["a"], keep)
        return alpha > (self.deadline or math.inf) * keep["speed"]

    def follow(self, state: Tree, turn: Turn, replies: dict[Client, Tree]) -> Tree:
        in_time = {c: reply for c, reply in replies.items() if not reply["late"]}
        return super().follow(state, turn, in_time) if in_time else state
