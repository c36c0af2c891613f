"""What a reply must look like: the job is done once at the server, for a client with two blank rows.

Whoever answers from elsewhere may answer anything. A reply that is to be averaged must have the very shapes
of the blank client's reply; one that is collected must have its types and numbers of dimensions. A solo verb
may give each client a tree of another form, so what is collected of it is the method's to check.
Knows forms. Does not know what any verb does, nor who answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from motet.client import Batch, ClientData, Column, Task
from motet.core import Ask, Method, Tree, Turn, is_solo
from motet.engines.evaluate import Job, evaluate
from motet.engines.loop import Loop, VerbFailed, name_of
from motet.wire import WireError, form

_WHO = "nobody"


class ExpectedReplies:
    """Forms of replies, found out once for each job and form of what is sent."""

    def __init__(self, task: Task, shape: tuple[int, ...], columns: tuple[Column, ...] = ()) -> None:
        y = torch.zeros(2, dtype=torch.int64 if task.kind == "classes" else torch.float32)
        blank = Batch.of(torch.zeros(2, *shape, dtype=torch.uint8 if task.pixels else torch.float32), y)
        self.loop = Loop({_WHO: ClientData(blank, blank, blank, columns)})
        self.known: dict[tuple[str, str], Tree] = {}

    def like(self, method: Method, turn: Turn, ask: Ask) -> Tree | None:
        """A reply to an ask, of the expected form; None where a blank client cannot tell."""
        if not ask.to or (is_solo(ask.verb) and ask.learn == "all"):
            return None
        return self._done(method, turn, ask.verb, ask.sent_to(min(ask.to)), self.loop.data)

    def scores(self, method: Method, turn: Turn, sent: Tree) -> Tree | None:
        """What the judge says, of the expected form."""
        return self._done(method, turn, partial(evaluate, method), sent, self.loop.client_test)

    def _done(
        self, method: Method, turn: Turn, job: Job, sent: Tree, data: Callable[[str], Any]
    ) -> Tree | None:
        key = name_of(job), form(sent)
        if key not in self.known:
            self.loop.method, self.loop.turn = method, Turn(turn.number, [_WHO], [_WHO], turn.seed)
            self.known[key] = self._try(job, sent, data)
        return self.known[key]

    def _try(self, job: Job, sent: Tree, data: Callable[[str], Any]) -> Tree | None:
        try:
            reply = self.loop.guarded(job, _WHO, sent, self.loop.joined(_WHO), data(_WHO))[0]
            form(reply)
        except (VerbFailed, WireError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            return None
        return reply
