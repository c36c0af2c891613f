"""What wrappers share: everything that a run calls, passed on to the engine inside.

Knows the members of an engine. Does not know what any of them does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from motet.core import SIDES, Ask, Client, Engine, Keeps, Method, Part, Refusal, Tree, Turn


class Wrapper:
    """An engine around another one; subclasses override what they change."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def clients(self) -> Sequence[Client]:
        return self.engine.clients

    @property
    def keeps(self) -> Keeps:
        return self.engine.keeps

    @property
    def refused(self) -> list[Refusal]:
        return self.engine.refused

    def begin(self, method: Method, turn: Turn) -> None:
        self.engine.begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        return self.engine.ask(ask)

    def evaluate(
        self,
        method: Method,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Sequence[str] = SIDES,
        see: Any = None,
    ) -> tuple[list[Client], Tree]:
        return self.engine.evaluate(method, state, turn, part, sides, see)

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        return self.engine.evaluate_trained(method, asks, turn)

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        return self.engine.personal_models(method, state, turn)

    def model_function(self, method: Method, state: Tree, turn: Turn, client: Client) -> str:
        return self.engine.model_function(method, state, turn, client)

    def server_scores(self, task: Any, model: Tree, examples: Any) -> Any:
        return self.engine.server_scores(task, model, examples)
