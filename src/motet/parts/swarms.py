"""Swarms of weight vectors: how they begin, move and learn from losses, as pure functions on a tree of tensors.

Several swarms that know nothing of each other go side by side (a first axis), so that the classes of a
task, or restarts, share a message. All draws are hashes of (seed, epoch, swarm, particle, coordinate).

Knows particles and losses. Does not know who says what a loss is, or what the numbers are weights of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from motet.local.data import hashes

Swarm = dict[
    str, Any
]  # theta, v (swarms, particles, numbers); loss (swarms, particles); alpha, failures (swarms,)
_FAR = 1e30  # the longest stride: a rejected v is kept and may grow, and what overflows is no number any more
_MOVED = 1e-7  # relative change of the best particle's loss which says that other clients have answered
_BIRTH = 1 << 43  # salt of the first draw, far from the epochs'


@dataclass(frozen=True)
class Rule:
    """How a swarm moves; w1 and w2 may be tensors (swarms, 1, 1)."""

    name: Literal["fsi", "pso"] = "fsi"  # Federated Swarm Intelligence, or conventional PSO
    w1: Any = 0.0  # share of the speed before
    w2: Any = 0.3  # share of the pull to the best particle
    adapt: bool = True  # whether alpha learns
    failures: int = 6  # epochs without a better best after which alpha is halved
    consecutive: bool = False  # whether a success forgets the failures before it
    cap: float = 0.0  # largest alpha; 0 = any


def uniform(seed: Tensor, salt: Tensor | int, shape: tuple[int, ...]) -> Tensor:
    """Numbers in [0, 1) with all 53 bits of a float64."""
    draw = hashes(seed, salt, torch.arange(torch.Size(shape).numel()))
    return (draw >> 9).double().mul_(2.0**-53).reshape(shape)


def pair(seed: Tensor, salt: Tensor | int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1) from the halves of each draw, 31 bits each: hashing is what a large epoch waits for."""
    draw = hashes(seed, salt, torch.arange(torch.Size(shape).numel())).reshape(shape)
    return (draw >> 31).double().mul_(2.0**-31), (draw & (1 << 31) - 1).double().mul_(2.0**-31)


def born(seed: int, theta: Tensor, alpha: float, rule: Rule) -> Swarm:
    """Swarms at rest, whose losses are not known yet."""
    many = len(theta)
    s: Swarm = {
        "theta": theta,
        "v": torch.zeros_like(theta),
        "loss": torch.full(theta.shape[:2], torch.inf, dtype=torch.float64),
        "alpha": torch.full((many,), alpha, dtype=torch.float64),
        "failures": torch.zeros(many, dtype=torch.int64),
        "epoch": torch.tensor(0),
        "seed": torch.tensor(seed),
        "excluded": torch.tensor(0),  # losses so far that some client could not compute
    }
    return s | {"x": theta} if rule.name == "pso" else s


def scattered(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Where particles may begin: uniform in [0, 1)."""
    return uniform(torch.tensor(seed), _BIRTH, shape)


def leaders(s: Swarm) -> Tensor:
    """gbest of each swarm, (swarms, 1, numbers)."""
    at = s["loss"].argmin(1)[:, None, None]
    best: Tensor = s["theta"].gather(1, at.expand(-1, 1, s["theta"].shape[2]))
    return best


def move(s: Swarm, rule: Rule) -> tuple[Tensor, Tensor]:
    """Candidates and their speed: v = alpha (w1 v + w2 R1 (gbest - theta) + (1 - w1 - w2) R2).

    In conventional PSO a pull to the best place that the particle itself has seen replaces the mutation R2.
    """
    theta, v = s["theta"], s["v"]
    here = s["x"] if rule.name == "pso" else theta
    r1, r2 = pair(s["seed"], s["epoch"], tuple(theta.shape))
    third = r2.mul_(theta - here) if rule.name == "pso" else r2.mul_(2).sub_(1)
    v = (leaders(s) - here).mul_(r1).mul_(rule.w2).add_(third.mul_(1 - rule.w1 - rule.w2)).add_(rule.w1 * v)
    v = v.mul_(s["alpha"][:, None, None]).clamp_(-_FAR, _FAR)
    return here + v, v


def moved(s: Swarm, cand: Tensor, v: Tensor, new: Tensor, rule: Rule) -> Swarm:
    """The swarms after an epoch in which the candidates were found to cost `new`."""
    old = s["loss"]
    # A particle that stood still has the same loss but for rounding, which must not count as a success.
    better = (new < old) & (cand != s["theta"]).any(2)
    loss = torch.where(better, new, old)
    alpha, failures = adapted(s["alpha"], s["failures"], loss.amin(1) < old.amin(1), rule)
    s = s | {
        "theta": torch.where(better[:, :, None], cand, s["theta"]),
        "v": v,
        "loss": loss,
        "alpha": alpha,
        "failures": failures,
        "epoch": s["epoch"] + 1,
        "excluded": s["excluded"] + new.isinf().sum(),
    }
    return s | {"x": cand} if rule.name == "pso" else s


def adapted(alpha: Tensor, failures: Tensor, fell: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    """alpha doubles where the best loss fell, and halves after some failures."""
    if not rule.adapt:
        return alpha, failures
    failures = torch.where(fell, 0 if rule.consecutive else failures, failures + 1)
    enough = failures >= rule.failures
    alpha = torch.where(fell, alpha * 2, torch.where(enough, alpha / 2, alpha))
    return alpha.clamp(max=rule.cap or _FAR), torch.where(enough, 0, failures)


def others_answered(s: Swarm, witness: Tensor) -> bool:
    """Whether the best particles' losses (swarms,) are not what they were, so that old losses do not compare."""
    known = s["loss"].amin(1)
    return bool(((witness - known).abs() > _MOVED * known.abs()).any())
