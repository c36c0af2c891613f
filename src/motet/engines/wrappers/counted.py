"""A wrapper that counts the bytes every client sends and receives in a round.

Knows sizes of trees. Does not know how they are sent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from motet.core import Ask, Client, Engine, Tree
from motet.engines.wrappers.wrapper import Wrapper
from motet.wire import size


class Counted(Wrapper):
    """Any engine, with a meter. A reply that is averaged is as large as the mean of the replies."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.up: Counter[Client] = Counter()
        self.down: Counter[Client] = Counter()
        self.sizes: dict[Any, int] = {}

    def ask(self, ask: Ask) -> Tree:
        answer = self.engine.ask(ask)
        letter = self.size(ask.send) if ask.each is None else 0
        reply = self.size(answer) if ask.learn == "mean" else 0
        for c in ask.to:
            self.down[c] += letter if ask.each is None else size(ask.each[c])
            self.up[c] += reply if ask.learn == "mean" else size(answer[c]) if c in answer else 0
        return answer

    def size(self, tree: Tree) -> int:
        """As `wire.size`, which takes longer than a small verb; tensors of the same shape are as large."""
        named = tree if type(tree) is dict else {"": tree}
        if not all(isinstance(v, Tensor) for v in named.values()):
            return size(tree)
        key = (type(tree), *((k, v.shape, v.dtype) for k, v in named.items()))
        if key not in self.sizes:
            self.sizes[key] = size(tree)
        return self.sizes[key]

    def take(self) -> dict[Client, tuple[int, int]]:
        """(up, down) of every client since the last call."""
        taken = {c: (self.up[c], self.down[c]) for c in sorted(self.up | self.down)}
        self.up.clear()
        self.down.clear()
        return taken
