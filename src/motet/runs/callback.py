"""A function of the user's own that is called after every round.

Knows rounds and scores. Does not know what the function does with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from motet.errors import RunError

if TYPE_CHECKING:
    from motet.runs.trainer import Observer, Trainer


@dataclass(frozen=True)
class RoundEnd:
    """What `on_round` is called with after every round."""

    method: str
    seed: int
    round: int  # as in `Run.scores`: the first round is 0
    rounds: int  # how many there will be at most
    scores: dict[str, float]  # mean validation scores of the clients so far, by side: personal, global
    seconds: float  # that the round took


class Callback:
    """An observer that calls a function with a RoundEnd after every round, besides another observer."""

    def __init__(self, on_round: Callable[[RoundEnd], object] | None, observer: Observer) -> None:
        if on_round is not None and not callable(on_round):
            raise RunError(
                f"on_round is of type {type(on_round).__name__}; expected a function of one RoundEnd"
            )
        self.call, self.observer = on_round, observer

    def on_start(self, trainer: Trainer) -> None:
        self.observer.on_start(trainer)

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.observer.on_round(trainer, seconds)
        if self.call:
            name, rounds = trainer.recipe["method"]["name"], trainer.recipe.train.rounds
            scores = dict(trainer.latest)
            self.call(RoundEnd(name, trainer.recipe.seed, trainer.number, rounds, scores, seconds))

    def should_stop(self) -> bool:
        return self.observer.should_stop()
