"""What a reply must look like: the verb runs once at the server, for a client with two blank rows.

A client that lives elsewhere may answer anything. A reply that is to be averaged must have the very shapes
of the blank client's reply; one that is collected must have its types and numbers of dimensions. A solo verb
may give each client a tree of another form, so the method itself checks what is collected of it.
Knows forms. Does not know what any verb does, nor who answers.
"""

from __future__ import annotations

from functools import partial

import torch

from motet.client import Batch, ClientData, Column, Task
from motet.client.metrics import MetricFailed
from motet.client.visit import VerbFailed, Visit, name_of
from motet.core import Ask, Method, Tree, Turn, Verb, is_solo
from motet.engines.evaluate import predictions, scores_at_home
from motet.wire import WireError, form


class ExpectedReplies:
    """Forms of replies, found out once for each verb and form of what is sent."""

    def __init__(self, task: Task, shape: tuple[int, ...], columns: tuple[Column, ...] = ()) -> None:
        y = torch.zeros(2, dtype=torch.int64 if task.kind == "classes" else torch.float32)
        blank = Batch.of(torch.zeros(2, *shape, dtype=torch.uint8 if task.pixels else torch.float32), y)
        self.blank = ClientData(blank, blank, blank, columns)
        self.known: dict[tuple[str, ...], Tree] = {}

    def like(self, method: Method, turn: Turn, ask: Ask) -> Tree | None:
        """A reply to an ask, of the expected form; None where a blank client gives none."""
        if not ask.to or (is_solo(ask.verb) and ask.learn == "all"):
            return None
        return self._known(method, turn, ask.verb, ask.sent_to(min(ask.to)))

    def scores(self, method: Method, turn: Turn, sent: Tree) -> Tree | None:
        """What an evaluation gives, of the expected form."""
        job = partial(scores_at_home, method, "nobody", partial(predictions, method))
        return self._known(method, turn, job, sent, score=True)

    def _known(
        self, method: Method, turn: Turn, verb: Verb, sent: Tree, *, score: bool = False
    ) -> Tree | None:
        sides = sent["sides"] if score else ()  # a form says nothing of values
        key = (name_of(verb), form(sent), *sides)
        if key not in self.known:
            visit = Visit(method, "nobody", self.blank, turn.seed, turn.number)
            self.known[key] = self._try(visit, verb, sent, score)
        return self.known[key]

    def _try(self, visit: Visit, verb: Verb, sent: Tree, score: bool) -> Tree | None:
        try:
            reply = visit.perform(verb, sent, visit.joined(), visit.test("val") if score else visit.data)[0]
            form(reply)
        except (
            VerbFailed,
            MetricFailed,
            WireError,
            ArithmeticError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            return None
        return reply
