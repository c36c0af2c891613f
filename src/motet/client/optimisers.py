"""Optimisers of local training: from a gradient to the direction of a step, which then goes u - lr * direction.

The formulas are those of torch.optim. Adam: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization",
Algorithm 1. AdamW: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", Algorithm 2.
An optimiser's state is a tuple of vectors. It starts at zero with every descent, that is in every round.
Statistics of BatchNorm have no gradient and no decay, so their direction is zero.
Knows gradients and weights. Does not know losses, batches or clients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from motet.client.batchnorm import weights_of
from motet.vec import Vec

OptimiserName = Literal["sgd", "adam", "adamw"]
State = tuple[Vec, ...]  # sgd: nothing, or its momentum; adam and adamw: m, v and the number of steps
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch's defaults
_STEPS = "steps"


@dataclass(frozen=True)
class Optimiser:
    """Which optimiser, with its settings."""

    name: OptimiserName = "sgd"
    momentum: float = 0.0  # of sgd
    decay: float = 0.0
    clip: float | None = (
        None  # largest length of a gradient, the decay of sgd and adam included; 0 and None: any
    )

    def initial(self, u: Vec, clients: Sequence[int] = ()) -> State:
        """The state before the first step; `clients` is (clients,) where weights are stacked."""
        if self.name == "sgd":
            return (u.zeros(),) if self.momentum else ()
        return u.zeros(), u.zeros(), Vec({_STEPS: torch.zeros(tuple(clients), dtype=torch.float64)})

    def direction(self, g: Vec, u: Vec, state: State) -> tuple[Vec, State]:
        """The direction of a step from u, where the gradient is g, and the state after it."""
        decoupled = self.decay if self.name == "adamw" else 0.0
        if self.decay and not decoupled:
            g = g + self.decay * weights_of(u)
        if self.clip:
            g = g * torch.clamp(self.clip / (g.sq().sqrt() + 1e-12), max=1.0)
        if self.name != "sgd":
            g, state = adam(g, *state)
            return (g + decoupled * weights_of(u) if decoupled else g), state
        if not state:
            return g, state
        m = self.momentum * state[0] + g
        return m, (m,)


def adam(g: Vec, m: Vec, v: Vec, count: Vec) -> tuple[Vec, State]:
    """m and v corrected for their start at zero: m^ / (sqrt(v^) + eps)."""
    m = _BETA1 * m + (1 - _BETA1) * g
    v = _BETA2 * v + (1 - _BETA2) * (g * g)
    count = count + 1.0
    of_m, of_v = correction(_BETA1, count[_STEPS]), correction(_BETA2, count[_STEPS]).sqrt()

    def one(m: Tensor, v: Tensor) -> Tensor:
        return m * of_m.to(m.dtype) / (v.sqrt() * of_v.to(v.dtype) + _EPS)

    return m.map(one, v), (m, v, count)


def correction(beta: float, steps: Tensor) -> Tensor:
    """1 / (1 - beta^steps); expm1 loses no digits where beta is near 1."""
    return -1 / torch.expm1(steps * math.log(beta))
