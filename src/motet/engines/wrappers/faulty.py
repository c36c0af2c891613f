"""A wrapper that loses clients, to see that methods bear it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from motet.core import Ask, Client, Engine, Method, Tree, Turn


class Faulty:
    """Any engine; `silent(client, round)` says who does not answer."""

    def __init__(self, engine: Engine, silent: Callable[[Client, int], bool]) -> None:
        self.engine, self.silent, self.clients = engine, silent, engine.clients
        self.number = -1

    def begin(self, method: Method, turn: Turn) -> None:
        self.number = turn.number
        self.engine.begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        return self.engine.ask(replace(ask, to=[c for c in ask.to if not self.silent(c, self.number)]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)
