"""A function of the user's own that is called after every round.

Knows rounds and scores. Does not know what the function does with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from motet.errors import RunError
from motet.runs.jobs import Event, Job
from motet.runs.parallel import Watch

if TYPE_CHECKING:
    from motet.runs.trainer import Observer, Trainer


@dataclass(frozen=True)
class RoundEnd:
    """What `on_round` is called with after every round."""

    method: str
    seed: int
    round: int  # as in `Run.scores`: the first round is 0; one that is done again comes again
    rounds: int  # how many there will be at most
    scores: dict[str, float]  # mean validation scores of the clients so far, by side: personal, global
    seconds: float  # that the round took


OnRound = Callable[[RoundEnd], object] | None


def checked(on_round: OnRound) -> OnRound:
    if on_round is not None and not callable(on_round):
        raise RunError(f"on_round is of type {type(on_round).__name__}; expected a function of one RoundEnd")
    return on_round


class Callback:
    """An observer that calls a function with a RoundEnd after every round, besides another observer."""

    def __init__(self, on_round: OnRound, observer: Observer) -> None:
        self.call, self.observer = checked(on_round), observer

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


class StudyCallback(Watch):
    """Calls a function with a RoundEnd after every round of many runs, besides another watch."""

    def __init__(self, on_round: OnRound, watch: Watch) -> None:
        self.call, self.watch = checked(on_round), watch
        self.on_begin, self.on_end, self.say = watch.on_begin, watch.on_end, watch.say  # type: ignore[method-assign]

    def on_event(self, job: Job, event: Event) -> None:
        self.watch.on_event(job, event)
        if self.call and event["event"] == "round":
            self.call(RoundEnd(**{f.name: event[f.name] for f in fields(RoundEnd)}))
