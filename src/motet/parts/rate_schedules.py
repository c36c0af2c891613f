"""How a learning rate changes from round to round: constant, cosine or in steps, each perhaps after a warm-up.

The factor of a round follows from its number alone, by the same arithmetic for a client in this process and for a
site of an organisation: a run that was killed goes on with the same rates. It is between 0 and 1, so the rate that a
recipe names is the largest one.
Knows numbers of rounds. Does not know what is trained.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.client.devices import widest_float
from motet.core import Count, MethodUnfit

Whole = Annotated[int, ">= 0"]
Share = Annotated[float, "0 to 1"]


@dataclass(frozen=True)
class RateSchedule:
    """Settings of a schedule.

    >>> [round(RateSchedule("cosine", warm_up=1, over=5).factor(r), 3) for r in range(6)]
    [0.5, 1.0, 0.854, 0.5, 0.146, 0.146]
    """

    kind: Literal["constant", "cosine", "step"] = (
        "constant"  # how the learning rate falls from round to round
    )
    warm_up: Whole = 0  # first rounds, in which the rate rises in equal steps to lr
    over: Whole = 0  # rounds that the schedule is for; later ones have the last rate; 0 = all of train.rounds
    last: Share = 0.0  # cosine: share of lr to which the rate falls; it would be reached after the last round
    every: Count = 20  # step: rounds between two falls
    by: Share = 0.5  # step: what the rate is multiplied by at a fall

    @property
    def changes(self) -> bool:
        return self.kind != "constant" or self.warm_up > 0

    def check(self) -> None:
        """Refuse a schedule that ends before its warm-up does, and settings that this kind does not use."""
        usual, used = RateSchedule(), {"cosine": ["last"], "step": ["every", "by"]}
        for kind, names in (*used.items(), ("cosine or step", [] if self.changes else ["over"])):
            given = [n for n in names if kind != self.kind and getattr(self, n) != getattr(usual, n)]
            if given:
                raise MethodUnfit(
                    f"method.schedule.{given[0]} is {getattr(self, given[0]):g}, and method.schedule.kind is "
                    f"{self.kind}, which does not use it.\n"
                    f"hint: method.schedule.kind={kind}, or leave method.schedule.{given[0]} out"
                )
        if self.changes and self.warm_up >= self.over:
            raise MethodUnfit(
                f"method.schedule.warm_up is {self.warm_up}, and the schedule has {self.over} rounds.\n"
                f"hint: method.schedule.warm_up={self.over // 10}, or more rounds: train.rounds={10 * self.warm_up}"
            )
        if self.kind == "step" and not self.by:
            raise MethodUnfit(
                "method.schedule.by is 0, and a learning rate of 0 trains nothing.\nhint: method.schedule.by=0.5"
            )

    def factor(self, number: int) -> float:
        """What the learning rate is multiplied by in a round, from 0."""
        number = min(max(number, 0), self.over - 1)
        if number < self.warm_up:
            return (number + 1) / (self.warm_up + 1)
        passed = number - self.warm_up
        if self.kind == "step":
            return max(self.by ** (passed // self.every), sys.float_info.min)  # never 0 by rounding
        if self.kind == "cosine":
            turned = math.cos(math.pi * passed / (self.over - self.warm_up))
            return self.last + (1 - self.last) * (1 + turned) / 2
        return 1.0

    def factor_at(self, number: Tensor) -> Tensor:
        """The same for a round that is a tensor: looked up, so that all engines have the same bits."""
        return factors(self, number.device)[number.clamp(0, self.over - 1)]


@lru_cache(maxsize=16)
def factors(schedule: RateSchedule, device: torch.device) -> Tensor:
    """The factors of all rounds, on the device that looks them up."""
    every = [schedule.factor(r) for r in range(schedule.over)]
    return torch.tensor(every, dtype=widest_float(device), device=device)
