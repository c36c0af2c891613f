"""The rule of a descent: its loss, its step, its optimiser, and one step of one client as a function of tensors.

Knows weights, examples and gradients. Does not know how many clients there are, nor how steps are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.func import grad

from motet.client.batchnorm import training_mode, with_statistics_of
from motet.client.data import Batch, PrivateSteps, seed_of
from motet.client.dropout import Draws, drawing
from motet.client.optimisers import Optimiser, State
from motet.client.private_steps import private_gradient
from motet.vec import Vec

Loss = Callable[..., Tensor]
Step = Callable[[Vec, Vec, Any, Tensor], Vec]


def sgd(u: Vec, g: Vec, given: Any, lr: Tensor) -> Vec:
    """The usual step."""
    return u - lr * g


@dataclass(frozen=True)
class DescentRule:
    """Everything about a descent that is no tensor. Recorded steps are cached by it, so it is hashable."""

    loss: Loss
    step: Step
    optimiser: Optimiser
    batch: int
    drop_last: bool
    augment: bool = False
    private: PrivateSteps | None = None  # DP-SGD: batches are drawn, gradients of examples cut and noised

    def salt(self, names: tuple[str, ...]) -> int:
        """Of a private descent's draws: another loss, or other weights, have other noise."""
        return seed_of(getattr(self.loss, "__name__", ""), *names)

    def value(self, u: Vec, batch: Batch, given: Any) -> Tensor:
        return self.loss(u, batch) if isinstance(given, tuple) and not given else self.loss(u, batch, given)


def pure_step(
    rule: DescentRule,
    u: Vec,
    state: State,
    given: Any,
    lr: Tensor,
    batch: Batch,
    draws: Draws,
    *noise: Tensor,
) -> tuple[Vec, State]:
    """One step of one client, in which nothing is changed in place; of a private one, `noise` are three tensors: that
    of the sum of gradients, the number of rows that is expected in a batch, and the numbers of those in this one."""
    with training_mode(), drawing(draws):
        slope = (
            private_gradient(rule, u, batch, given, *noise) if noise else grad(rule.value)(u, batch, given)
        )
    g, fresh = rule.optimiser.direction(slope, u, state)
    return with_statistics_of(rule.step(u, g, given, lr), u), fresh


class Shape(NamedTuple):
    """How the flat arguments of a step are to be read."""

    names: tuple[str, ...]  # of the weights
    state: tuple[
        tuple[str, ...], ...
    ]  # names in each vector of the optimiser's state, which follows the weights
    given: Any  # the structure of the tree that the loss is given
    dims: tuple[int | None, ...]  # for each of its leaves: 0 if clients differ in it, None if they share it

    @property
    def moving(self) -> int:
        """How many arguments change from step to step."""
        return len(self.names) + sum(map(len, self.state))

    def read(self, values: Sequence[Tensor]) -> tuple[Vec, State]:
        """Weights and state from the arguments that change."""
        rest = iter(values)
        u, *state = (Vec((name, next(rest)) for name in names) for names in (self.names, *self.state))
        return u, tuple(state)
