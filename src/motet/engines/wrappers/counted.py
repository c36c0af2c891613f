"""A wrapper that counts the messages and bytes that every client sends and receives, verb by verb, scores included.

The bytes are those of the trees that letters would hold. A file, such as a published model, goes to each client once;
later letters name it, as they do between organisations. Knows sizes of trees. Does not know how they are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client.visit import name_of
from motet.core import SIDES, Ask, Client, Engine, Fused, Method, Part, Tree, Turn
from motet.engines.evaluate import evaluation_request
from motet.engines.letters import JOB_LEARNS, LEARN
from motet.engines.meter import Asked, Counts, Meter, Traffic, by_client
from motet.engines.wrappers.wrapper import Wrapper
from motet.wire import FileNames, named, size

_SHORT = 16  # letters of a file's hash that tell it from others
_SAVED = {"saved": True}  # what a client answers that saved its model


class Counted(Wrapper):
    """Any engine whose clients live here, with a meter. A reply that is averaged is as large as the mean."""

    def __init__(self, engine: Engine, left: Mapping[Client, int] | None = None) -> None:
        """`left`: bytes of the last ask's replies that left through guards, which the engine inside knows."""
        super().__init__(engine)
        self.left = {} if left is None else left
        self.meter = Meter()
        self.sizes: dict[Any, int] = {}
        self.names = FileNames()
        # files that each client was sent, by the first letters of their hashes
        self.held: dict[Client, set[str]] = {}
        self.has_files = False

    # ---- what a run asks ----

    def begin(self, method: Method, turn: Turn) -> None:
        self.has_files = method.has_public_models
        super().begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        answer = self.engine.ask(ask)
        if isinstance(answer, Fused):
            self.count_fused(ask, answer)
            return answer
        letter = self.size(ask.send) if ask.each is None and not self.has_files else 0
        reply = self.size(answer) if ask.learn == "mean" else 0
        verb, learn = name_of(ask.verb), LEARN[ask.learn]
        if letter and ask.learn == "mean" and not self.left:
            self.meter.count_all(ask.to, verb, learn, reply, letter)
            return answer
        for c in ask.to:
            up = self.left.get(c, reply) if ask.learn == "mean" else size(answer[c]) if c in answer else 0
            self.meter.count(c, verb, learn, up, letter or self.sent(c, ask.sent_to(c)))
        return answer

    def count_fused(self, ask: Ask, done: Fused) -> None:
        """As many messages as would have been sent one by one, all of them as large."""
        up, down = done.asks * self.size(done.reply), done.asks * self.size(done.sent)
        for c in ask.to:
            self.meter.count(c, name_of(ask.verb), LEARN[ask.learn], up, down, done.asks)

    def evaluate(
        self,
        method: Method,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Sequence[str] = SIDES,
        see: Any = None,
    ) -> tuple[list[Client], Tree]:
        clients, scores = super().evaluate(method, state, turn, part, sides, see)
        self.has_files = method.has_public_models
        downloads = {c: method.download(state, c) for c in clients}
        self.count_scores("evaluate", scores, self.requested(method, state, downloads, sides))
        return clients, scores

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        clients, scores = super().evaluate_trained(method, asks, turn)
        sent = {c: self.sent(c, ask.sent_to(c)) for ask in asks for c in ask.to if c in clients}
        self.count_scores("evaluate_trained", scores, sent)
        return clients, scores

    def count_scores(self, job: str, scores: Tree, letters: Mapping[Client, int]) -> None:
        """Stacked scores leave client by client, and all of them are as large."""
        up = size(pytree.tree_map(lambda v: v[0], scores)) if letters else 0
        for c, down in letters.items():
            self.meter.count(c, job, JOB_LEARNS[job], up, down)

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        for client, tree in super().personal_models(method, state, turn):
            down = self.sent(client, method.download(state, client))
            self.meter.count(client, "save_model", JOB_LEARNS["save_model"], size(_SAVED), down)
            yield client, tree

    # ---- sizes ----

    def requested(
        self, method: Method, state: Tree, downloads: Mapping[Client, Tree], sides: Sequence[str]
    ) -> dict[Client, int]:
        """Bytes of the letters that ask clients for scores; one that many get is measured once."""
        known: dict[int, int] = {}

        def letter(client: Client, download: Tree) -> int:
            if self.has_files or id(download) not in known:
                request = evaluation_request(method, state, download, sides)
                known[id(download)] = self.sent(client, request)
            return known[id(download)]

        return {c: letter(c, download) for c, download in downloads.items()}

    def sent(self, client: Client, tree: Tree) -> int:
        """Bytes of what a client is sent; of files, those that it does not have yet."""
        if not self.has_files:
            return self.size(tree)
        small, files = named(tree, self.names)
        held = self.held.setdefault(client, set())
        new = {key[:_SHORT]: file for key, file in files.items() if key[:_SHORT] not in held}
        held.update(new)
        return size(small) + sum(file.numel() for file in new.values())

    def size(self, tree: Tree) -> int:
        """As `wire.size`, which takes longer than a small verb; tensors of the same shape are as large."""
        flat = tree if type(tree) is dict else {"": tree}
        if not all(isinstance(v, Tensor) for v in flat.values()):
            return size(tree)
        key = (type(tree), *((k, v.shape, v.dtype) for k, v in flat.items()))
        if key not in self.sizes:
            self.sizes[key] = size(tree)
        return self.sizes[key]

    # ---- what was counted ----

    def take(self) -> Traffic:
        """(up, down) of every client since the last call."""
        return by_client(self.take_by_verb())

    def take_by_verb(self) -> dict[Asked, Counts]:
        """(messages, up, down) of every client and verb since the last call."""
        return self.meter.take()
