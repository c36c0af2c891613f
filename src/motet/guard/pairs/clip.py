"""Clipping: an update longer than a limit is shortened to it, so that no client moves a mean further than others.

The length is the L2 norm of all floating numbers of the update together. Where a reply has the names and shapes of
what was sent, or of one part of it, the update is their difference; else the reply is the update.
Knows updates. Does not know clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from motet.core import Tree
from motet.guard.pairs.chain import Leaving, float_leaves, origin, reply_of, update_of, with_floats


@dataclass(frozen=True)
class Clip:
    """Updates of at most `most` in length leave."""

    most: float
    name = "clip"

    def leave(self, reply: Tree, about: Leaving, kept: Tree) -> tuple[Tree, Tree]:
        floats = float_leaves(reply)[0]
        start = origin(reply, about.sent)
        update = update_of(floats, start)
        if (length := norm(update)) <= self.most:
            return reply, ()
        shortened = [u * (self.most / length) for u in update]
        return with_floats(reply, reply_of(shortened, floats, start)), ()

    def arrive(self, came: Tree, sent: Tree) -> Tree:
        return came


def norm(update: list[Tensor]) -> float:
    """The length of an update.

    >>> import torch
    >>> norm([torch.tensor([3.0]), torch.tensor([0.0, 4.0])])
    5.0
    """
    return math.sqrt(math.fsum(float(u.square().sum()) for u in update))
