"""Optimisers of local training: from a gradient to the direction of a step, which then goes u - lr * direction.

The formulas are those of torch.optim. Adam: Kingma & Ba 2015, "Adam: A Method for Stochastic Optimization",
Algorithm 1. AdamW: Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", Algorithm 2.
An optimiser's state is a tuple of vectors. It starts anew with every descent, that is in every round.
Statistics of BatchNorm have no gradient and no decay, so their direction is zero.
Knows gradients and weights. Does not know losses, batches or clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from motet.client.batchnorm import weights_of
from motet.client.devices import widest_float
from motet.vec import Vec

OptimiserName = Literal["sgd", "adam", "adamw"]
State = tuple[Vec, ...]  # sgd: nothing, or its momentum; adam and adamw: m, v and the powers of both betas
_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8  # torch's defaults


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
        kind = widest_float(next(iter(u.values())).device)
        one = torch.ones(tuple(clients), dtype=kind)
        return u.zeros(), u.zeros(), Vec(beta1=one, beta2=one.clone())

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


def adam(g: Vec, m: Vec, v: Vec, powers: Vec) -> tuple[Vec, State]:
    """m and v corrected for their start at zero: m^ / (sqrt(v^) + eps).

    The powers beta^t are carried along: t itself would cost a logarithm for every few weights in a compiled step.
    """
    m = _BETA1 * m + (1 - _BETA1) * g
    v = _BETA2 * v + (1 - _BETA2) * (g * g)
    powers = Vec(beta1=_BETA1 * powers["beta1"], beta2=_BETA2 * powers["beta2"])
    of_m, of_v = 1 - powers["beta1"], (1 - powers["beta2"]).sqrt()

    def one(
        m: Tensor, v: Tensor
    ) -> Tensor:  # with both corrections multiplied out, so that there is one division
        root = of_v.to(v.dtype)
        return m * root / (of_m.to(m.dtype) * (v.sqrt() + _EPS * root))

    return m.map(one, v), (m, v, powers)
