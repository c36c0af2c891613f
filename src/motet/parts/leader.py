"""Who leads in a game: a client that chooses its learning rate and its epochs, within what it can afford.

Safe under vmap. Knows agents, ranges and budgets. Does not know training, models or examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from motet.parts import agents
from motet.parts import games as game

Me = dict[str, Any]  # what a leader keeps from round to round


@dataclass(frozen=True)
class Leader:
    """How a client plays."""

    mind: agents.AgentSettings
    low: float  # its smallest learning rate (eta)
    high: float  # and its largest
    fixed: tuple[str, ...] = ()  # "eta": always the largest; "alpha": always the most epochs
    deadline: float = 0.0  # units of time in a round; 0 = none
    raw: bool = False  # cut actions off as PAGE's code does, and remember what they were cut to

    def newborn(self, seed: Tensor, budget: Sequence[int], speeds: Sequence[float], dice: Tensor) -> Me:
        """Epochs that it can afford, and how many it does in a unit of time, drawn by two dice."""
        most, speed = torch.tensor(budget), torch.tensor(speeds)
        return {
            "agent": agents.born(self.mind, seed), "s": torch.zeros(1), "a": torch.zeros(2), "r": torch.zeros(()),
            "now": torch.zeros(1), "most": most[dice[0] % len(most)], "speed": speed[dice[1] % len(speed)],
        }  # fmt: skip

    def plays(self, me: Me, bonus: Tensor, seed: Tensor) -> tuple[Tensor, Me]:
        """A round: what the last move led to and earned since, and the next action.

        The very first move is not remembered: no state came before it.
        """
        last = me["s"], me["a"], me["r"] + bonus
        a, agent = game.move(me["agent"], last, me["now"], seed, self.mind, since=1)
        return a, me | {"agent": agent, "s": me["now"], "a": a}

    def choice(self, a: Tensor, me: Me) -> tuple[Tensor, Tensor]:
        """Learning rate and epochs: [-1, 1] onto low … high and 1 … most."""
        most = me["most"]
        if self.raw:
            return cut_off(a, me["agent"]["acted"] <= self.mind.warm_up, self.low, self.high, most)
        eta, alpha = game.onto(a[0], self.low, self.high), game.onto(a[1], 1, most).round().long()
        eta = torch.full_like(eta, self.high) if "eta" in self.fixed else eta
        return eta, most if "alpha" in self.fixed else alpha

    def late(self, epochs: Tensor, me: Me) -> Tensor:
        """Whether so many epochs take longer than the deadline."""
        if not self.deadline:
            return torch.zeros_like(epochs, dtype=torch.bool)
        late: Tensor = epochs > self.deadline * me["speed"]
        return late


def cut_off(a: Tensor, warm: Tensor, low: float, high: float, most: Tensor) -> tuple[Tensor, Tensor]:
    """Learning rate and epochs as in PAGE's code: (a + 1) / 2 cut off at low and high, and the second of it so
    many times over that `high` stands for `most`; while `warm`, the whole of [-1, 1] is between low and high.

    >>> cut_off(torch.tensor([0.0, -0.9]), torch.tensor(False), 0.001, 0.1, torch.tensor(20))
    (tensor(0.1000), tensor(10))
    """
    u = torch.where(warm, game.onto(a, low, high), game.onto(a, 0, 1).clamp(low, high))
    return u[0], (u[1] * torch.floor(most / high + 1e-4)).clamp(min=1).minimum(most).long()
