"""The rules by which a method that asks for losses moves on: particle swarms, CMA-ES, natural strategies, a surrogate.

`SearchesByLosses` is what such a method says of itself: what fits it, what suits it, and what it reports.
Knows settings of such a method and states of all rules. Does not know how losses are asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from motet.client import Data
from motet.core import Fuse, MethodUnfit, Tree
from motet.parts import particle_losses as losses
from motet.parts.fused_swarms import advance_by_keeps
from motet.parts.searches import CovarianceAdaptation, NaturalStrategy, PointSearch, initial_search
from motet.parts.surrogates import MOST, Surrogate, coefficients
from motet.parts.swarms import Array, State, SwarmRule, Swarms, UniformDraws, gbest, initial_state, with_trail

SEARCHES: dict[str, type[PointSearch]] = {
    "cma": CovarianceAdaptation,
    "nes": NaturalStrategy,
    "surrogate": Surrogate,
}
_FEWEST = 5  # candidates of a search in a message
_MOST_CMA = 1000  # numbers: a matrix of a million


class SearchesByLosses(losses.SendsLosses):
    """What a method with such a rule says of itself."""

    few_weights = True  # the number of epochs grows with the number of weights

    if TYPE_CHECKING:  # these are the method's
        rule: str
        swarms: int
        w1: float
        w2: float
        alpha: float
        first: str
        spread: float
        bound: float
        epsilon: float
        trail: int

    # ---- states ----

    def first_points(self, w0: Tensor, draws: UniformDraws) -> Tensor:
        """Where a rule begins, (swarms, points, numbers): particles around the network's weights w0 or in [0, 1), or
        one mean."""
        one = self.rule in SEARCHES
        u = torch.from_numpy(draws.draw(1 if one else self.particles, w0.shape[1]))
        spread = 0.0 if one else self.spread
        return u if self.first == "unit" else w0[:, None] + spread * (2 * u - 1)

    def begun(self, seed: int, theta: Tensor, loss: Array, lost: int, draws: UniformDraws) -> Tree:
        """The state after the losses of the first points are known."""
        if self.rule not in SEARCHES:
            return initial_state(seed, theta, loss, lost, draws.positions(), self.alpha, self.rule)
        return self.moving(initial_search(seed, theta, loss, lost, draws.positions(), self.alpha)).state()

    def moving(self, s: State) -> Swarms | PointSearch:
        """A working copy of the state for the epochs of a round."""
        if search := SEARCHES.get(self.rule):
            return search(s, self.particles * self.tries, self.stretch, self.bound, bool(self.epsilon))
        return Swarms(s, SwarmRule.of(self), self.stretch)

    def with_best(self, s: Tree) -> Tree:
        s = with_trail(s) if self.trail and int(s["epoch"]) % self.trail == 0 else s
        return s | {"best": losses.best_weights(self.task, gbest(s), s["loss"].amin(1), self.per_class)}

    # ---- engines ----

    def fuse(self, moving: Swarms | PointSearch) -> Fuse | None:
        return partial(advance_by_keeps, moving) if self.fused_asks() and isinstance(moving, Swarms) else None

    def fused_asks(self) -> int:
        plain = self.rule == "fsi" and self.tries == 1 and not self.epsilon
        return self.stretch if plain and self.keeps_roots else 0

    def suits(self) -> tuple[str, str]:
        small = self.task.dense and self.task.stackable
        why = "a client's losses are quick work, and stacking clients takes longer"
        return ("loop", why) if small else ("", "")

    # ---- clients ----

    @property
    def keeps_roots(self) -> bool:
        """Whether squared errors of a linear network are trained: clients then need their examples only once."""
        plain = self.loss == "task" and not self.clip and self.task.criterion.name == "squared"
        return plain and losses.is_linear(self.task)

    def join(self, data: Data) -> Tree:
        return losses.gram_root(self.task, data) if self.keeps_roots else ()

    # ---- reports ----

    def metrics(self, s: Tree) -> dict[str, float]:
        best = s["loss"].amin(1)  # of each swarm; the swarms of classes are one model together
        loss = best.mean() if self.per_class else best.min()
        return {"loss": float(loss), "alpha": float(s["alpha"].median())}

    def summary(self, s: Tree) -> dict[str, Any]:
        """Of each swarm: the loss of its best particle, alpha and, if recorded, the trail."""
        found = {"epochs": int(s["epoch"]), "loss": s["loss"].amin(1).tolist(), "alpha": s["alpha"].tolist()}
        return found | ({"trail": s["trail"].tolist(), "every": self.trail} if self.trail else {})

    def log(self, before: Tree, after: Tree) -> str:
        lost = int(after["excluded"]) - int(before["excluded"] if before else 0)
        return f"{lost} losses were not finite at some client; those particles stayed" if lost else ""

    # ---- checks ----

    @property
    def per_class(self) -> bool:
        return self.loss in losses.PER_CLASS

    def check(self) -> None:
        wrong = losses.unfit(self.task, self.loss, self.swarms, self.clip, self.epsilon)
        if self.w1 + self.w2 > 1 + 1e-9:
            wrong.append(f"w1 + w2 is {self.w1 + self.w2:g}.\nhint: 1 at most; the rest is mutation's share")
        if self.trail % self.stretch:
            wrong.append(f"trail is {self.trail}.\nhint: a multiple of stretch, which is {self.stretch}")
        if not wrong:
            numbers = losses.initial_particle(self.task, self.per_class).shape[1]
            wrong = unfit_rule(self.rule, numbers, self.particles * self.tries)
        if wrong:
            raise MethodUnfit("swarm: " + "\n".join(wrong))


def unfit_rule(rule: str, numbers: int, candidates: int) -> list[str]:
    """Why a rule cannot search so many numbers, or with so few candidates; empty if it can."""
    wrong = []
    if rule == "surrogate" and numbers > MOST:
        wrong.append(
            f"rule surrogate fits a quadratic function, which has {coefficients(numbers):,} coefficients for "
            f"{numbers:,} weights; it takes at most {MOST} weights.\n"
            "hint: method.rule=cma or nes, or a smaller network"
        )
    if rule == "cma" and numbers > _MOST_CMA:
        wrong.append(
            f"rule cma learns a matrix of {numbers:,} x {numbers:,} numbers; it takes at most {_MOST_CMA:,} weights.\n"
            "hint: method.rule=nes"
        )
    if rule in SEARCHES and candidates < _FEWEST:
        wrong.append(
            f"rule {rule} needs {_FEWEST} candidates in a message, and has {candidates}.\n"
            "hint: raise method.particles"
        )
    return wrong
