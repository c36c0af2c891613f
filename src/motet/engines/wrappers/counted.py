"""A wrapper that counts the messages and bytes that every client sends and receives in a round, verb by verb.

Knows sizes of trees. Does not know how they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from motet.client.visit import name_of
from motet.core import Ask, Client, Engine, Fused, Tree
from motet.engines.letters import LEARN
from motet.engines.wrappers.wrapper import Wrapper
from motet.wire import size

Asked = tuple[Client, str, str]  # client, verb, average or collect
Traffic = dict[Client, tuple[int, int]]  # bytes up and down


class Counted(Wrapper):
    """Any engine, with a meter. A reply that is averaged is as large as the mean of the replies."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked: dict[Asked, list[int]] = {}  # messages, bytes up, bytes down
        self.sizes: dict[Any, int] = {}

    def ask(self, ask: Ask) -> Tree:
        answer = self.engine.ask(ask)
        if isinstance(answer, Fused):
            self.count_fused(ask, answer)
            return answer
        letter = self.size(ask.send) if ask.each is None else 0
        reply = self.size(answer) if ask.learn == "mean" else 0
        verb, learn = name_of(ask.verb), LEARN[ask.learn]
        for c in ask.to:
            counts = self.asked.setdefault((c, verb, learn), [0, 0, 0])
            counts[0] += 1
            counts[1] += reply if ask.learn == "mean" else size(answer[c]) if c in answer else 0
            counts[2] += letter if ask.each is None else size(ask.each[c])
        return answer

    def count_fused(self, ask: Ask, done: Fused) -> None:
        """As many messages as would have been sent one by one, all of them as large."""
        up, down = self.size(done.reply), self.size(done.sent)
        for c in ask.to:
            counts = self.asked.setdefault((c, name_of(ask.verb), LEARN[ask.learn]), [0, 0, 0])
            counts[:] = (n + done.asks * more for n, more in zip(counts, (1, up, down), strict=True))

    def size(self, tree: Tree) -> int:
        """As `wire.size`, which takes longer than a small verb; tensors of the same shape are as large."""
        named = tree if type(tree) is dict else {"": tree}
        if not all(isinstance(v, Tensor) for v in named.values()):
            return size(tree)
        key = (type(tree), *((k, v.shape, v.dtype) for k, v in named.items()))
        if key not in self.sizes:
            self.sizes[key] = size(tree)
        return self.sizes[key]

    def take(self) -> Traffic:
        """(up, down) of every client since the last call."""
        return by_client(self.take_by_verb())

    def take_by_verb(self) -> dict[Asked, tuple[int, int, int]]:
        """(messages, up, down) of every client and verb since the last call."""
        taken = {key: (many, up, down) for key, (many, up, down) in sorted(self.asked.items())}
        self.asked.clear()
        return taken


def by_client(asked: Mapping[Asked, Iterable[int]]) -> Traffic:
    """(up, down) of every client, all verbs together."""
    found: Traffic = {}
    for (client, _, _), (_, up, down) in asked.items():
        before = found.get(client, (0, 0))
        found[client] = before[0] + up, before[1] + down
    return found
