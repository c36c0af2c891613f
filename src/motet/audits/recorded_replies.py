"""Replies of every client, recorded while a run is played again, and a round made again from some of them.

Also a reply that the server only averages is recorded, as it arrives through guards: the replay is ours, and the
record never leaves it. A round is made again by the method itself: its generator is driven once more, and each ask is
answered from the replies that a coalition gave to it.
Knows asks, replies and means. Does not know what a coalition is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from motet.client.visit import name_of
from motet.core import Ask, Client, Engine, Method, NoReply, Tree, Turn
from motet.engines.driver import converse
from motet.engines.mean import ReplyMean, RunningMean
from motet.engines.wrappers.wrapper import Wrapper
from motet.errors import RunError
from motet.guard.masks.in_process import MaskedMean
from motet.vec import unstack


class CannotRebuild(RunError):
    """A round cannot be made again from recorded replies."""


@dataclass
class RecordedAsk:
    """One ask, who replied what, and how much each reply weighed in the mean."""

    ask: Ask
    replies: dict[Client, Tree] = field(default_factory=dict)
    weights: dict[Client, float] = field(default_factory=dict)

    @property
    def verb(self) -> str:
        return name_of(self.ask.verb)


class RecordedMean:
    """A mean that writes down what is added to it."""

    def __init__(self, inner: ReplyMean, record: RecordedAsk) -> None:
        self.inner, self.record = inner, record

    @property
    def weight(self) -> float:
        return self.inner.weight

    @property
    def left(self) -> dict[str, int]:
        return dict(getattr(self.inner, "left", {}))

    def add(self, reply: Tree, weight: float, client: Client = "") -> None:
        self.record.replies[client], self.record.weights[client] = reply, weight
        self.inner.add(reply, weight, client)

    def add_stacked(self, replies: Tree, weights: Tensor, clients: Sequence[Client] = ()) -> None:
        self.record.replies |= dict(zip(clients, unstack(replies, len(clients)), strict=True))
        self.record.weights |= dict(zip(clients, weights.tolist(), strict=True))
        self.inner.add_stacked(replies, weights, clients)

    def mean(self) -> Tree:
        return self.inner.mean()


class Recorder(Wrapper):
    """Any engine; `asks` holds the asks of the round that ended last, with all replies."""

    def __init__(self, engine: Engine, inside: Any) -> None:
        super().__init__(engine)
        self.asks: list[RecordedAsk] = []
        self.turn: Turn | None = None
        self.fold: Callable[[], ReplyMean] = inside.fold
        inside.fold = lambda: RecordedMean(self.fold(), self.asks[-1])

    def begin(self, method: Method, turn: Turn) -> None:
        self.asks, self.turn = [], turn
        super().begin(method, turn)

    def ask(self, ask: Ask) -> Tree:
        self.asks.append(RecordedAsk(replace(ask, fuse=None)))
        answer = super().ask(self.asks[-1].ask)
        if ask.learn == "all":
            self.asks[-1].replies = dict(answer)
        return answer


# ---- a round made again ----


@dataclass
class RecordedAnswers:
    """Answers asks of a round from recorded replies of some clients; all that a conversation calls of an engine."""

    asks: Sequence[RecordedAsk]
    members: Collection[Client]
    fold: Callable[[], ReplyMean]
    weights: dict[Client, float] = field(default_factory=dict)  # other weights than those that were recorded
    at: int = 0

    def ask(self, ask: Ask) -> Tree:
        if self.at >= len(self.asks) or self.asks[self.at].verb != name_of(ask.verb):
            raise CannotRebuild(
                f"what the method asks next ({name_of(ask.verb)}) depends on the replies, so that a round cannot be "
                "made again from recorded ones\nhint: --shapley none; leaving one out needs no recorded replies"
            )
        recorded, self.at = self.asks[self.at], self.at + 1
        some = {c: r for c, r in recorded.replies.items() if c in self.members}
        if not some:
            raise NoReply(f"nobody of the coalition answered {recorded.verb}")
        if ask.learn == "all":
            return some
        fold = self.fold()
        for c, reply in some.items():
            fold.add(reply, self.weights.get(c, recorded.weights[c]), c)
        return fold.mean()


def rebuilt(
    method: Method,
    state: Tree,
    turn: Turn,
    asks: Sequence[RecordedAsk],
    members: Collection[Client],
    fold: Callable[[], ReplyMean],
    weights: dict[Client, float] | None = None,
) -> Tree:
    """The state after a round in which only the members' replies came; as it was where that is too few."""
    if not turn.cohort:  # the round was passed over: nobody had any budget left
        return state
    engine: Any = RecordedAnswers(asks, members, fold, weights or {})
    try:
        return converse(engine, method.round(state, turn))
    except NoReply:
        return state
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise CannotRebuild(
            f"the round of {type(method).__name__.lower()} cannot be made again from the replies of some clients: what "
            f"it asks later follows from earlier replies ({e})\n"
            "hint: --shapley none; leaving one out needs no recorded replies"
        ) from e


def plain_if_masked(fold: Callable[[], ReplyMean]) -> Callable[[], ReplyMean]:
    """The mean that coalitions are averaged with: masks change nothing but rounding, and refuse small sums."""
    return RunningMean if isinstance(fold(), MaskedMean) else fold
