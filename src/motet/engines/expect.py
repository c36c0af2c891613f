"""What a reply must look like: the verb is done once at the server, for a client with two blank rows.

Whoever answers from elsewhere may answer anything. A reply that is to be averaged must have the very shapes
of the blank client's reply; one that is collected must have its types and numbers of dimensions.
Knows forms. Does not know what any verb does, nor who answers.
"""

from __future__ import annotations

import torch

from motet.core import Ask, Method, Tree, Turn
from motet.engines.loop import Loop, VerbFailed
from motet.local import Batch, Column, Home, Task
from motet.wire import form, pack

_WHO = "nobody"


class Expect:
    """Forms of replies, found out once for each verb and form of what is sent."""

    def __init__(self, task: Task, shape: tuple[int, ...], columns: tuple[Column, ...] = ()) -> None:
        y = torch.zeros(2, dtype=torch.int64 if task.kind == "classes" else torch.float32)
        blank = Batch.of(torch.zeros(2, *shape, dtype=torch.uint8 if task.pixels else torch.float32), y)
        self.loop = Loop({_WHO: Home(blank, blank, blank, columns)})
        self.known: dict[tuple[str, str], Tree] = {}

    def like(self, method: Method, turn: Turn, ask: Ask) -> Tree | None:
        """A reply of the expected form; None where a blank client cannot tell."""
        if not ask.to:
            return None
        sent = ask.sent_to(min(ask.to))
        key = getattr(ask.verb, "__name__", ""), form(sent)
        if key not in self.known:
            self.loop.method, self.loop.turn = method, Turn(turn.number, [_WHO], [_WHO], turn.seed)
            try:
                keep = self.loop.joined(_WHO)
                reply = self.loop.guarded(ask.verb, _WHO, sent, keep, self.loop.data(_WHO))[0]
                pack(reply)
            except (VerbFailed, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
                reply = None
            self.known[key] = reply
        return self.known[key]
