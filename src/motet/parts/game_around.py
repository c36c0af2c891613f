"""A game around a method: clients choose rate and epochs of that method's training, and the server their weights.

`GameAround` goes before a game (methods/page.py), which goes before any method of FedAvg's kind: its round asks all
clients once for `train` and takes the mean, and a client's model is where that training ended. What clients train by,
send and keep is the method's own, and so is what its server makes of a mean. The game collects the replies, gives the
method's server the mean with the weights that it chose, and may then lengthen the step of the global model.

Knows rounds and what clients chose. Does not know how the players choose.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Ask, Method, MethodUnfit, NoReply, Share, Talk, Tree, Turn, collect
from motet.parts import games
from motet.parts.agents import AgentSettings
from motet.parts.games import AGENT
from motet.parts.players import PlayerName
from motet.vec import Vec, stack

NOT_SET = ("lr", "epochs", "schedule", "steps")  # settings of the inner method that clients choose instead
# Parts of a method that the game has too: it shows its own state, and a client's model is where its training ended.
REPLACED = ("personal", "alone", "epochs_at_evaluation", "after_visit", "metrics", "summary", "log")
FITTING = "hint: method=fedavg+page, fedprox+page, scaffold+page or feddyn+page"


@dataclass
class ChosenData(Data):
    """A client's data, with the rate and the epochs that it chose for this round."""

    eta: Tensor = torch.tensor(0.0)
    alpha: Tensor = torch.tensor(0)


class Chosen(Method):
    """Goes before a method of FedAvg's kind: it trains as each client chose."""

    def for_visit(self) -> Self:
        return self

    def rate(self, data: ChosenData) -> Tensor:
        return data.eta

    def descend(self, loss: Any, w: Vec, data: ChosenData, **how: Any) -> Vec:
        found: Vec = super().descend(loss, w, data, **{"epochs": data.alpha} | how)  # type: ignore[misc]
        return found

    def path_length(self, data: ChosenData) -> Tensor:
        in_an_epoch: Tensor = self.steps_taken(data.n)  # type: ignore[attr-defined]
        return data.eta * data.alpha * in_an_epoch


class GameAround(Method):
    """The parts of a game that differ where another method trains."""

    player: PlayerName = "constant"  # who chooses eta and alpha (parts/players.py), and with networks p too
    lr_scale: Literal["linear", "log"] = "log"  # of eta between lr_min and lr_max
    floor: Share = 1.0  # smallest weight of a client, as a share of the largest; 1 = all weights are equal
    step_max: Annotated[float, ">= 1"] = (
        8.0  # largest length s of the server's step; 1 = it makes none longer
    )
    agent: AgentSettings = replace(AGENT, initial_action=0.2)  # the players
    made_of: ClassVar[type[Method]]  # the method around which the game is, trained as clients choose

    @cached_property
    def inner(self) -> Any:
        """The method inside, with its settings: one object, because recorded training steps belong to it."""
        names = [f.name for f in fields(self.made_of) if f.name not in NOT_SET]
        return self.made_of(**{k: getattr(self, k) for k in names})

    def check(self) -> None:
        super().check()
        self.inner.check()

    def for_visit(self) -> Self:
        return self

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        inner, name = self.inner.start(turn), type(self).__name__
        w = None if inspect.isgenerator(inner) else self.inner.global_model(inner)
        if not isinstance(w, Vec) or set(w) != set(self.task.w0):
            raise MethodUnfit(
                f"{name}: its server keeps no whole global model that a game could score.\n{FITTING}"
            )
        return super().start(turn) | {"inner": inner, "w": w}  # type: ignore[operator]

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        ask = self.asked(state, turn)
        # collect, not average: the server answers each client's reply with a weight of its own.
        replies = yield collect(self.train, ask.to, send=ask.send, each=ask.each)  # type: ignore[attr-defined]
        if not replies:
            raise NoReply(f"{type(self).__name__}, round {turn.number}: nobody answered")
        return self.follow(state, turn, replies)  # type: ignore[attr-defined]

    def asked(self, state: Tree, turn: Turn) -> Ask:
        """What the method inside asks clients."""
        talk = self.inner.round(state["inner"], turn)
        ask = next(talk)
        talk.close()
        if not isinstance(ask, Ask) or ask.learn != "mean" or ask.verb.__name__ != "train":
            raise MethodUnfit(
                f"{type(self).__name__}: its round does not take one mean of what clients train."
            )
        return ask

    def answered(self, state: Tree, turn: Turn, mean: Tree) -> Tree:
        """The next state of the method inside, whose clients replied this on average."""
        talk = self.inner.round(state["inner"], turn)
        next(talk)
        try:
            talk.send(mean)
        except StopIteration as end:
            return end.value
        raise MethodUnfit(f"{type(self).__name__}: its round asks clients more than once.")

    def merged(self, state: Tree, turn: Turn, found: Tree, p: Tensor) -> Vec:
        """The next global model, of replies (clients, …) with the weights p."""
        mean = games.weighted_mean(found["reply"], p)
        return self.inner.global_model(self.answered(state, turn, mean))  # type: ignore[no-any-return]

    def single_models(self, state: Tree, turn: Turn, found: Tree) -> Vec:
        """The next global models, each of one client's reply: (clients, …)."""
        ones = torch.eye(len(found["f"]), dtype=torch.float64)
        return stack([self.merged(state, turn, found, p) for p in ones])  # type: ignore[no-any-return]

    def carried(self, state: Tree, turn: Turn, found: Tree, p: Tensor, w: Vec) -> Tree:
        """What the server keeps besides the game: the inner state, with the global model where the game put it."""
        after = self.answered(state, turn, games.weighted_mean(found["reply"], p))
        old = self.inner.global_model(after)
        return {"inner": w if after is old else {k: w if v is old else v for k, v in after.items()}}

    # ---- a client ----

    def join(self, data: Data) -> Tree:
        return super().join(data) | {"inner": self.inner.join(data)}

    def received(self, sent: Tree) -> Vec:
        """The global model in what a client is sent."""
        return sent if isinstance(sent, Vec) else self.inner.global_model(sent)

    def trained(
        self, sent: Tree, keep: Tree, data: Data, eta: Tensor, alpha: Tensor
    ) -> tuple[Tree, Vec, Tree]:
        """The reply, the client's own model, and what it keeps."""
        inner, here = self.inner, ChosenData(**vars(data), eta=eta, alpha=alpha)
        reply, kept = inner.train(sent, keep["inner"], here)
        own = inner.trained_model(sent, reply, kept, here).args[0]
        return {"reply": reply}, own, keep | {"inner": kept}

    @classmethod
    def made(cls, game: type[Method], base: type[Method]) -> type[Method]:
        """The class of a game around a method; the game's settings come first."""
        own = {f.name for f in fields(game)} | set(vars(GameAround)) | set(dir(game))
        shared = {f.name for c in base.__mro__ if c in game.__mro__ and c is not object for f in _fields(c)}
        if both := sorted({f.name for f in fields(base)} & own - shared):
            raise MethodUnfit(f"{base.__name__} and {game.__name__} both have {', '.join(both)}.\n{FITTING}")
        inner = type(f"Chosen{base.__name__}", (Chosen, base), {"__module__": base.__module__})
        said = {
            "__doc__": f"{game.__doc__}\n    Around {base.__name__}: {base.__doc__}",
            "__module__": base.__module__,
            "__annotations__": dict.fromkeys(NOT_SET, ClassVar[Any]),
            "made_of": inner,
            "epochs": 0,
            "lr": 0.0,
        }
        return type(f"{base.__name__}{game.__name__}", (GameAround, game, base), said)


def _fields(c: type) -> tuple[Any, ...]:
    return fields(c) if hasattr(c, "__dataclass_fields__") else ()
