"""Agents that learn which action pays: DDPG as pure functions on a tree of tensors.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning", Algorithm 1. An agent is
plain data: a client can keep it, the server's state can hold it, it can go over the wire, and vmap can
run many agents at once. Draws are hashes of a seed. A step that is not due yet is computed and then
discarded by torch.where, because vmap allows no branches.

Defaults are those of PAGE (Synthetic). Differs from PAGE's code: hidden weights start within
±1/sqrt(fan-in), where the code takes the number of outputs for the fan-in; biases of the last layer
start as small as its weights; the memory holds actions as they were chosen, in [-1, 1], and not the
values that they were turned into, so that the critic is asked about actions that it has seen.

Knows states, actions and rewards. Does not know what they stand for, or who acts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import linear

from motet.client.data import hashes
from motet.core import Count, NotNegative, Share
from motet.errors import UsageError
from motet.vec import Vec

# Tensors, and for each network a Vec of rows: now (weights), target (weights of the target network), m and v (Adam).
Agent = dict[str, Any]
Layers = list[tuple[int, int]]  # (outputs, inputs) of each
Rate = Annotated[float, "> 0"]
Whole = Annotated[int, ">= 0"]
_LEVEL_RATE = 0.1  # weight of the newest reward in the running mean of rewards
_THETA = 0.15  # of the Ornstein-Uhlenbeck noise: how strongly it is pulled back to 0
_CAPACITY = 1000  # transitions in the memory where neither the settings nor a run say how many
_MOST = 0.999  # largest initial action: tanh reaches 1 only at infinity
# Salts of draws: far from those of orders and of methods' own draws, which are small numbers.
_ACTOR, _CRITIC, _ANY, _NOISE, _BATCH = (1 << 40 | k for k in range(5))


@dataclass(frozen=True)
class AgentSettings:
    """What a recipe can set of an agent."""

    actor: tuple[Count, ...] = (40, 30)  # sizes of the actor's hidden layers
    critic: tuple[Count, ...] = (40, 30)  # sizes of the critic's hidden layers
    state_layers: Whole = (
        1  # first layers of the critic that see only the state; the next one also sees the action
    )
    hidden: Literal["relu", "tanh"] = "relu"  # activation function of the hidden layers
    actor_lr: Rate = 0.0005  # learning rate of the actor (Adam)
    critic_lr: Rate = 0.005  # learning rate of the critic (Adam)
    gamma: Share = (
        0.99  # discount factor: value of a reward that comes one round later; 0 = only this round counts
    )
    tau: Share = 0.005  # how far the target networks move towards the trained networks in a round
    batch_size: Count = 32  # transitions that an agent learns from in a round
    capacity: Whole = (
        0  # transitions that its memory holds; 0 = one for each round of the run, at most 60,000
    )
    warm_up: Whole = 36  # number of first rounds in which actions are drawn uniformly at random
    sigma: NotNegative = 0.2  # size of the exploration noise (Ornstein-Uhlenbeck); 0 = none
    noise_rate: Rate = 0.01  # time step of the noise; the smaller it is, the more slowly the noise changes
    noise_decay: Whole = 500  # rounds until the noise has shrunk to zero; 0 = it does not shrink
    initial_action: Share = 0.0  # actions of an untrained agent: 0 = middle of their range, 1 = its upper end
    normalise_rewards: bool = False  # subtract the running mean of the rewards and divide by their spread

    def __post_init__(self) -> None:
        if not 0 <= self.state_layers <= len(self.critic):
            raise UsageError(
                f"agent.state_layers is {self.state_layers} and the critic has {len(self.critic)} hidden layers, "
                f"so it would never see the action.\nhint: state_layers must be 0 to {len(self.critic)}"
            )

    def sized(self, states: int, actions: int, **changes: Any) -> AgentSpec:
        """The settings of an agent whose states and actions have so many numbers."""
        return AgentSpec(**(vars(self) | changes), states=states, actions=actions)


@dataclass(frozen=True, kw_only=True)
class AgentSpec(AgentSettings):
    """Everything about an agent that is no tensor."""

    states: int  # numbers in a state
    actions: int  # numbers in an action, each in [-1, 1]
    player: str = "ddpg"  # who acts (parts/players.py)


def initial(spec: AgentSpec, seed: Tensor | int) -> Agent:
    """An agent that has seen nothing."""
    width = 2 * spec.states + spec.actions + 1
    bias = math.atanh(min(spec.initial_action, _MOST))
    return {
        "actor": _initial_weights(actor_layers(spec), seed, _ACTOR, bias),
        "critic": initial_critic(spec, seed),
        "memory": torch.zeros(spec.capacity or _CAPACITY, width),  # rows of state, action, reward, next state
        "noise": torch.zeros(spec.actions),
        "level": torch.zeros(()),  # running mean of the rewards
        "acted": torch.tensor(0),
        "stored": torch.tensor(0),
        "learned": torch.tensor(0),
    }


def initial_critic(spec: AgentSpec, seed: Tensor | int, salt: int = _CRITIC) -> Vec:
    return _initial_weights(critic_layers(spec), seed, salt)


def act(agent: Agent, state: Tensor, seed: Tensor | int, spec: AgentSpec) -> tuple[Tensor, Agent]:
    """An action in [-1, 1]^n: drawn uniformly during the warm-up, then the actor's plus noise."""
    acted, before = agent["acted"], agent["noise"]
    warm = acted < spec.warm_up
    noise = drift(before, seed, spec)
    chosen = policy(agent["actor"]["now"], state, spec) + noise_scale(acted, spec) * noise
    action = torch.where(warm, 2 * uniform(seed, _ANY, spec.actions) - 1, chosen.clamp(-1, 1))
    return action, agent | {"acted": acted + 1, "noise": torch.where(warm, before, noise)}


def remember(
    agent: Agent, state: Tensor, action: Tensor, reward: Tensor, then: Tensor, when: Tensor | bool = True
) -> Agent:
    """Write a transition to the state `then` over the oldest one in memory; nothing unless `when`."""
    memory, stored, when = agent["memory"], agent["stored"], torch.as_tensor(when)
    row = torch.cat([state, action, reward.reshape(1), then])
    here = (torch.arange(len(memory)) == stored % len(memory)) & when
    return agent | {"memory": torch.where(here[:, None], row, memory), "stored": stored + when.long()}


def remember_all(agent: Agent, rows: Tensor) -> Agent:
    """Several transitions at once, (many, state + action + reward + next state); not under vmap."""
    memory, stored = agent["memory"], agent["stored"]
    rows = rows[-len(memory) :]
    at = (stored + torch.arange(len(rows))) % len(memory)
    return agent | {"memory": memory.index_copy(0, at, rows), "stored": stored + len(rows)}


def relative_reward(
    agent: Agent, reward: Tensor, spec: AgentSpec, when: Tensor | bool = True
) -> tuple[Tensor, Agent]:
    """A reward minus the running mean of the rewards before it, if rewards are normalised.

    Models get better from round to round, and rewards rise with them whatever an agent does. With plain
    rewards, an agent would take its latest actions for the reason.
    """
    if not spec.normalise_rewards:
        return reward, agent
    first = agent["stored"] == 0
    level = torch.where(first, reward, agent["level"])
    moved = torch.where(torch.as_tensor(when), level + _LEVEL_RATE * (reward - level), agent["level"])
    return reward - level, agent | {"level": moved}


def learn(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Agent:
    """One step of critic, actor and target networks, once the warm-up is over and the memory holds a batch."""
    ready = is_ready(agent, spec)
    actor, critic, t = agent["actor"], agent["critic"], agent["learned"] + 1
    s, a, r, then = sample(agent, seed, spec)
    y = r + spec.gamma * value(critic["target"], then, policy(actor["target"], then, spec), spec)
    new_critic = adam(critic, grad(critic_loss)(critic["now"], s, a, y, spec), t, spec.critic_lr)
    new_actor = adam(actor, grad(actor_loss)(actor["now"], new_critic["now"], s, spec), t, spec.actor_lr)
    return agent | {
        "actor": follow(new_actor, spec.tau).where(ready, actor),
        "critic": follow(new_critic, spec.tau).where(ready, critic),
        "learned": agent["learned"] + ready.long(),
    }


# ---- learning ----


def is_ready(agent: Agent, spec: AgentSpec) -> Tensor:
    """Whether the warm-up is over and the memory holds a batch."""
    return torch.as_tensor((agent["stored"] >= spec.batch_size) & (agent["acted"] >= spec.warm_up))


def sample(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> tuple[Tensor, ...]:
    """A batch of transitions, drawn with replacement: states, actions, rewards, next states."""
    memory, n, m = agent["memory"], spec.states, spec.actions
    held = agent["stored"].clamp(1, len(memory))
    rows = memory[_hashes(seed, _BATCH, spec.batch_size) % held]
    s, a, r, then = rows.split([n, m, 1, n], dim=-1)
    r = r.squeeze(-1)
    return s, a, scaled(r, memory[:, n + m], held) if spec.normalise_rewards else r, then


def scaled(r: Tensor, all_rewards: Tensor, held: Tensor) -> Tensor:
    """Rewards divided by the root mean square of those held in memory: one over a loss is 1 for one client and
    100,000 for another, and a critic has one learning rate.

    >>> scaled(torch.tensor([3.0]), torch.tensor([1.0, 7.0, 0.0]), torch.tensor(2)).tolist()
    [0.6000000238418579]
    """
    real = torch.arange(len(all_rewards)) < held
    return r / ((all_rewards**2 * real).sum() / held).sqrt().clamp(min=1e-12)


def critic_loss(w: Tensor, s: Tensor, a: Tensor, y: Tensor, spec: AgentSpec) -> Tensor:
    return ((y - value(w, s, a, spec)) ** 2).mean()


def actor_loss(w: Tensor, critic: Tensor, s: Tensor, spec: AgentSpec) -> Tensor:
    return -value(critic, s, policy(w, s, spec), spec).mean()


def adam(net: Vec, g: Tensor, t: Tensor, lr: float, b1: float = 0.9, b2: float = 0.999) -> Vec:
    """Kingma & Ba 2015, Algorithm 1, for step t = 1, 2, …"""
    m, v = b1 * net["m"] + (1 - b1) * g, b2 * net["v"] + (1 - b2) * g**2
    first, second = (-torch.expm1(t * math.log(b)) for b in (b1, b2))  # 1 - b^t, without cancellation
    return Vec(net | {"now": net["now"] - lr * (m / first) / ((v / second).sqrt() + 1e-8), "m": m, "v": v})


def follow(net: Vec, tau: float) -> Vec:
    """The network with its target moved towards it."""
    return Vec(net | {"target": tau * net["now"] + (1 - tau) * net["target"]})


# ---- networks ----


def policy(w: Tensor, state: Tensor, spec: AgentSpec) -> Tensor:
    """The actor: states (…, n) to actions (…, m)."""
    layers = actor_layers(spec)
    for k, (weight, bias) in enumerate(_unfold(w, layers)):
        state = linear(state, weight, bias)
        state = state.tanh() if k == len(layers) - 1 else _activation(state, spec)
    return state


def value(w: Tensor, state: Tensor, action: Tensor, spec: AgentSpec) -> Tensor:
    """The critic: what actions (…, m) in states (…, n) are worth, (…)."""
    layers, x = critic_layers(spec), state
    for k, (weight, bias) in enumerate(_unfold(w, layers)):
        x = linear(torch.cat([x, action], -1) if k == spec.state_layers else x, weight, bias)
        x = x if k == len(layers) - 1 else _activation(x, spec)
    return x.squeeze(-1)


def actor_layers(spec: AgentSpec) -> Layers:
    return _layers(spec.states, *spec.actor, spec.actions)


def critic_layers(spec: AgentSpec) -> Layers:
    plain = _layers(spec.states, *spec.critic, 1)
    return [(o, i + spec.actions if k == spec.state_layers else i) for k, (o, i) in enumerate(plain)]


def _layers(*sizes: int) -> Layers:
    return list(zip(sizes[1:], sizes, strict=False))


def _unfold(w: Tensor, layers: Layers) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of each layer, from one row of weights."""
    parts = iter(torch.split(w, [size for o, i in layers for size in (o * i, o)]))
    return [(next(parts).reshape(o, i), next(parts)) for o, i in layers]


def _activation(x: Tensor, spec: AgentSpec) -> Tensor:
    return x.relu() if spec.hidden == "relu" else x.tanh()


def _initial_weights(layers: Layers, seed: Tensor | int, salt: int, bias: float = 0.0) -> Vec:
    """Weights and biases uniform within ±1/sqrt(fan-in), in the last layer within ±0.003, where `bias` is
    added to the biases."""
    bounds = [1 / math.sqrt(i) for _, i in layers[:-1]] + [0.003]
    bound = torch.cat([torch.full((o * i + o,), b) for (o, i), b in zip(layers, bounds, strict=True)])
    last = torch.arange(len(bound)) >= len(bound) - layers[-1][0]
    w = (2 * uniform(seed, salt, len(bound)) - 1) * bound + bias * last
    return Vec(now=w, target=w.clone(), m=torch.zeros_like(w), v=torch.zeros_like(w))


# ---- draws ----


def drift(noise: Tensor, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    """One step of an Ornstein-Uhlenbeck process around 0."""
    pull = _THETA * -noise * spec.noise_rate
    return noise + pull + spec.sigma * math.sqrt(spec.noise_rate) * normal(seed, _NOISE, len(noise))


def noise_scale(acted: Tensor, spec: AgentSpec) -> Tensor:
    """What noise is multiplied by: 1 as the warm-up ends, falling linearly to 0."""
    since = (acted - spec.warm_up).clamp(min=0)
    return (1 - since / spec.noise_decay).clamp(min=0) if spec.noise_decay else torch.ones(())


def uniform(seed: Tensor | int, salt: int, many: int) -> Tensor:
    """In [0, 1): 24 bits, which a float32 holds without rounding up to 1."""
    return (_hashes(seed, salt, many) >> 38) / 2**24


def normal(seed: Tensor | int, salt: int, many: int) -> Tensor:
    """Mean 0, variance 1 (Box and Muller 1958)."""
    bits = _hashes(seed, salt, many)
    far, angle = ((bits >> 38) + 1) / 2**24, ((bits >> 14) & 0xFFFFFF) / 2**24  # in (0, 1] and [0, 1)
    return (-2 * far.log()).sqrt() * (2 * math.pi * angle).cos()


def _hashes(seed: Tensor | int, salt: int, many: int) -> Tensor:
    return hashes(torch.as_tensor(seed), salt, torch.arange(many))
