"""Agents that learn which action pays: DDPG as pure functions on a tree of tensors.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", Algorithm 1. An agent is
plain data, so it can be what a client keeps or a part of the server's state, go over the wire, and be
one of many under vmap: draws are hashes of a seed, and what is not due yet is undone by torch.where.

Defaults are those of PAGE (Synthetic). Differs from PAGE's code: hidden weights start within
±1/sqrt(fan-in), where the code takes the number of outputs for the fan-in; biases of the last layer
start as small as its weights; memory holds actions as they were chosen, in [-1, 1], not what they
were made into, so that the critic is asked about what it has seen.

Knows states, actions and rewards. Does not know what they stand for, or who acts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import linear

from motet.client.data import hashes
from motet.errors import UsageError
from motet.vec import Vec

Agent = dict[str, Any]  # tensors, and for each network a Vec of rows: now, slow (the target), m and v (Adam)
Layers = list[tuple[int, int]]  # (outputs, inputs) of each
# Salts of draws: far from those of orders and of methods' own draws, which are small numbers.
_LATELY = 0.1  # what the newest reward counts in what they have been like lately
_ACTOR, _CRITIC, _ANY, _NOISE, _BATCH = (1 << 40 | k for k in range(5))


@dataclass(frozen=True)
class AgentSettings:
    """Everything about an agent that is no tensor."""

    states: int  # numbers in a state
    actions: int  # numbers in an action, each in [-1, 1]
    actor: tuple[int, ...] = (40, 30)  # sizes of hidden layers
    critic: tuple[int, ...] = (40, 30)
    meet: int = 1  # how many of the critic's layers see the state alone; then the action joins it
    hidden: Literal["relu", "tanh"] = "relu"  # what follows a hidden layer
    actor_lr: float = 0.0005
    critic_lr: float = 0.005
    gamma: float = 0.99  # what a reward is worth one step later
    tau: float = 0.005  # how far targets follow in a step
    batch: int = 32  # memories in a step of learning, drawn with replacement
    capacity: int = 1000  # memories; the oldest is forgotten first
    warm_up: int = 36  # first actions, which are drawn uniformly
    decay: int = 500  # actions until noise has faded; 0 = it never does
    theta: float = 0.15  # of the Ornstein-Uhlenbeck noise: pull,
    sigma: float = 0.2  # spread (0 = no noise),
    mu: float = 0.0  # mean,
    dt: float = 0.01  # and time between two actions
    anchor: float = 0.0  # where in (-1, 1) every action starts, before anything is learned
    steady: bool = False  # learn from how rewards differ from those just before, by the spread of that

    def __post_init__(self) -> None:
        if not 0 <= self.meet <= len(self.critic):
            raise UsageError(
                f"the action joins after {self.meet} layers of a critic with {len(self.critic)} hidden ones, "
                f"so it is never seen.\nhint: meet must be 0 to {len(self.critic)}"
            )


def born(settings: AgentSettings, seed: Tensor | int) -> Agent:
    """An agent that has seen nothing."""
    width = 2 * settings.states + settings.actions + 1
    return {
        "actor": _newborn(actor_layers(settings), seed, _ACTOR, math.atanh(settings.anchor)),
        "critic": _newborn(critic_layers(settings), seed, _CRITIC),
        "memory": torch.zeros(settings.capacity, width),  # rows of state, action, reward, next state
        "noise": torch.zeros(settings.actions),
        "level": torch.zeros(()),  # what rewards have been like lately
        "acted": torch.tensor(0),
        "stored": torch.tensor(0),
        "learned": torch.tensor(0),
    }


def act(agent: Agent, state: Tensor, seed: Tensor | int, settings: AgentSettings) -> tuple[Tensor, Agent]:
    """An action in [-1, 1]^n: any at all while warming up, then the actor's with noise."""
    acted, before = agent["acted"], agent["noise"]
    warm = acted < settings.warm_up
    noise = drift(before, seed, settings)
    chosen = policy(agent["actor"]["now"], state, settings) + _loudness(acted, settings) * noise
    action = torch.where(warm, 2 * uniform(seed, _ANY, settings.actions) - 1, chosen.clamp(-1, 1))
    return action, agent | {"acted": acted + 1, "noise": torch.where(warm, before, noise)}


def remember(
    agent: Agent, state: Tensor, action: Tensor, reward: Tensor, then: Tensor, when: Tensor | bool = True
) -> Agent:
    """What an action led to, written over the oldest memory; nothing unless `when`."""
    memory, stored, when = agent["memory"], agent["stored"], torch.as_tensor(when)
    row = torch.cat([state, action, reward.reshape(1), then])
    here = (torch.arange(len(memory)) == stored % len(memory)) & when
    return agent | {"memory": torch.where(here[:, None], row, memory), "stored": stored + when.long()}


def remember_all(agent: Agent, rows: Tensor) -> Agent:
    """Several memories at once, (many, state + action + reward + next state); not under vmap."""
    memory, stored = agent["memory"], agent["stored"]
    rows = rows[-len(memory) :]
    at = (stored + torch.arange(len(rows))) % len(memory)
    return agent | {"memory": memory.index_copy(0, at, rows), "stored": stored + len(rows)}


def surprise(
    agent: Agent, reward: Tensor, settings: AgentSettings, when: Tensor | bool = True
) -> tuple[Tensor, Agent]:
    """How a reward differs from what rewards have been like lately, if they are to be steadied.

    While everyone learns, rewards rise whoever acts how: whatever an action drifted to meanwhile would seem
    to be the reason.
    """
    if not settings.steady:
        return reward, agent
    first = agent["stored"] == 0
    level = torch.where(first, reward, agent["level"])
    lately = torch.where(torch.as_tensor(when), level + _LATELY * (reward - level), agent["level"])
    return reward - level, agent | {"level": lately}


def learn(agent: Agent, seed: Tensor | int, settings: AgentSettings) -> Agent:
    """One step of critic, actor and targets; none before the warm-up is over and a batch is remembered."""
    ready = (agent["stored"] >= settings.batch) & (agent["acted"] >= settings.warm_up)
    actor, critic, t = agent["actor"], agent["critic"], agent["learned"] + 1
    s, a, r, then = recall(agent, seed, settings)
    y = r + settings.gamma * value(critic["slow"], then, policy(actor["slow"], then, settings), settings)
    keen = adam(critic, grad(_error)(critic["now"], s, a, y, settings), t, settings.critic_lr)
    bold = adam(actor, grad(_regret)(actor["now"], keen["now"], s, settings), t, settings.actor_lr)
    return agent | {
        "actor": follow(bold, settings.tau).where(ready, actor),
        "critic": follow(keen, settings.tau).where(ready, critic),
        "learned": agent["learned"] + ready.long(),
    }


# ---- learning ----


def recall(agent: Agent, seed: Tensor | int, settings: AgentSettings) -> tuple[Tensor, ...]:
    """A batch of memories: states, actions, rewards, next states."""
    memory, n, m = agent["memory"], settings.states, settings.actions
    held = agent["stored"].clamp(1, len(memory))
    rows = memory[_dice(seed, _BATCH, settings.batch) % held]
    s, a, r, then = rows.split([n, m, 1, n], dim=-1)
    r = r.squeeze(-1)
    return s, a, scaled(r, memory[:, n + m], held) if settings.steady else r, then


def scaled(r: Tensor, all_of_them: Tensor, held: Tensor) -> Tensor:
    """Rewards by the root of the mean square of those held in memory: one over a loss is 1 for one client and
    100,000 for another, and a critic has one learning rate.

    >>> scaled(torch.tensor([3.0]), torch.tensor([1.0, 7.0, 0.0]), torch.tensor(2)).tolist()
    [0.6000000238418579]
    """
    real = torch.arange(len(all_of_them)) < held
    return r / ((all_of_them**2 * real).sum() / held).sqrt().clamp(min=1e-12)


def _error(w: Tensor, s: Tensor, a: Tensor, y: Tensor, settings: AgentSettings) -> Tensor:
    return ((y - value(w, s, a, settings)) ** 2).mean()


def _regret(w: Tensor, critic: Tensor, s: Tensor, settings: AgentSettings) -> Tensor:
    return -value(critic, s, policy(w, s, settings), settings).mean()


def adam(net: Vec, g: Tensor, t: Tensor, lr: float, b1: float = 0.9, b2: float = 0.999) -> Vec:
    """Kingma & Ba 2015, Algorithm 1, for step t = 1, 2, …"""
    m, v = b1 * net["m"] + (1 - b1) * g, b2 * net["v"] + (1 - b2) * g**2
    first, second = (-torch.expm1(t * math.log(b)) for b in (b1, b2))  # 1 - b^t, without cancellation
    return Vec(net | {"now": net["now"] - lr * (m / first) / ((v / second).sqrt() + 1e-8), "m": m, "v": v})


def follow(net: Vec, tau: float) -> Vec:
    return Vec(net | {"slow": tau * net["now"] + (1 - tau) * net["slow"]})


# ---- networks ----


def policy(w: Tensor, state: Tensor, settings: AgentSettings) -> Tensor:
    """The actor: states (…, n) to actions (…, m)."""
    layers = actor_layers(settings)
    for k, (weight, bias) in enumerate(_unfold(w, layers)):
        state = linear(state, weight, bias)
        state = state.tanh() if k == len(layers) - 1 else _bend(state, settings)
    return state


def value(w: Tensor, state: Tensor, action: Tensor, settings: AgentSettings) -> Tensor:
    """The critic: what actions (…, m) in states (…, n) are worth, (…)."""
    layers, x = critic_layers(settings), state
    for k, (weight, bias) in enumerate(_unfold(w, layers)):
        x = linear(torch.cat([x, action], -1) if k == settings.meet else x, weight, bias)
        x = x if k == len(layers) - 1 else _bend(x, settings)
    return x.squeeze(-1)


def actor_layers(settings: AgentSettings) -> Layers:
    return _layers(settings.states, *settings.actor, settings.actions)


def critic_layers(settings: AgentSettings) -> Layers:
    plain = _layers(settings.states, *settings.critic, 1)
    return [(o, i + settings.actions if k == settings.meet else i) for k, (o, i) in enumerate(plain)]


def _layers(*sizes: int) -> Layers:
    return list(zip(sizes[1:], sizes, strict=False))


def _unfold(w: Tensor, layers: Layers) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of each layer, from one row of weights."""
    parts = iter(torch.split(w, [size for o, i in layers for size in (o * i, o)]))
    return [(next(parts).reshape(o, i), next(parts)) for o, i in layers]


def _bend(x: Tensor, settings: AgentSettings) -> Tensor:
    return x.relu() if settings.hidden == "relu" else x.tanh()


def _newborn(layers: Layers, seed: Tensor | int, salt: int, tilt: float = 0.0) -> Vec:
    """Weights and biases uniform within ±1/sqrt(fan-in), in the last layer within ±0.003, where `tilt` is
    added to biases."""
    bounds = [1 / math.sqrt(i) for _, i in layers[:-1]] + [0.003]
    bound = torch.cat([torch.full((o * i + o,), b) for (o, i), b in zip(layers, bounds, strict=True)])
    last = torch.arange(len(bound)) >= len(bound) - layers[-1][0]
    w = (2 * uniform(seed, salt, len(bound)) - 1) * bound + tilt * last
    return Vec(now=w, slow=w.clone(), m=torch.zeros_like(w), v=torch.zeros_like(w))


# ---- draws ----


def drift(noise: Tensor, seed: Tensor | int, settings: AgentSettings) -> Tensor:
    """One step of an Ornstein-Uhlenbeck process."""
    pull = settings.theta * (settings.mu - noise) * settings.dt
    return noise + pull + settings.sigma * math.sqrt(settings.dt) * normal(seed, _NOISE, len(noise))


def _loudness(acted: Tensor, settings: AgentSettings) -> Tensor:
    """What noise is multiplied by: 1 as the warm-up ends, falling linearly to 0."""
    since = (acted - settings.warm_up).clamp(min=0)
    return (1 - since / settings.decay).clamp(min=0) if settings.decay else torch.ones(())


def uniform(seed: Tensor | int, salt: int, many: int) -> Tensor:
    """In [0, 1): 24 bits, which a float32 holds without rounding up to 1."""
    return (_dice(seed, salt, many) >> 38) / 2**24


def normal(seed: Tensor | int, salt: int, many: int) -> Tensor:
    """Mean 0, variance 1 (Box and Muller 1958)."""
    bits = _dice(seed, salt, many)
    far, angle = ((bits >> 38) + 1) / 2**24, ((bits >> 14) & 0xFFFFFF) / 2**24  # in (0, 1] and [0, 1)
    return (-2 * far.log()).sqrt() * (2 * math.pi * angle).cos()


def _dice(seed: Tensor | int, salt: int, many: int) -> Tensor:
    return hashes(torch.as_tensor(seed), salt, torch.arange(many))
