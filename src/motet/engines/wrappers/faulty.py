"""A wrapper that loses clients, to see that methods bear it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from motet.core import Ask, Client, Engine, Method, Tree, Turn
from motet.engines.wrappers.wrapper import Wrapper


class Faulty(Wrapper):
    """Any engine; `silent(client, round)` says who does not answer."""

    def __init__(self, engine: Engine, silent: Callable[[Client, int], bool]) -> None:
        super().__init__(engine)
        self.silent, self.number = silent, -1

    def begin(self, method: Method, turn: Turn) -> None:
        self.number = turn.number
        super().begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        return super().ask(replace(ask, to=[c for c in ask.to if not self.silent(c, self.number)]))
