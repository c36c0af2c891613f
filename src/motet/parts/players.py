"""Players: who chooses actions in [-1, 1]^n from what earlier actions earned, as pure functions on a tree of tensors.

All players have one interface and one memory (parts/agents.py): `initial`, `act`, `learn`. What they spend is the same,
one action a round, so that what an agent's networks are worth can be measured against simpler players:

    ddpg        actor and critic (Lillicrap et al. 2016)
    td3         two critics, of which the lower one counts, and an actor that moves every second time (Fujimoto et al.
                2018, "Addressing Function Approximation Error in Actor-Critic Methods", Algorithm 1)
    bandit      a grid of actions, Thompson sampling (Thompson 1933) from normalised rewards that are forgotten slowly
    population  a few actions that take turns; the worst one becomes a copy of the best one, with noise (Jaderberg et
                al. 2017, "Population Based Training of Neural Networks", within one player)
    random      uniform draws, later the action that earned most
    constant    the initial action

Nothing branches on a tensor, and draws are hashes of a seed.
Knows states, actions and rewards. Does not know what they stand for, or who acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad

from motet.parts import agents
from motet.parts.agents import Agent, AgentSettings, AgentSpec

PlayerName = Literal["ddpg", "td3", "bandit", "population", "random", "constant"]
WITH_NETWORKS = ("ddpg", "td3")
_ACTS = {"initial_action"}
_EXPLORES = {"noise_decay", "normalise_rewards", "capacity"}
# Settings of an agent that a player goes by; those with networks go by all of them.
USED: dict[str, set[str]] = {
    "bandit": {"normalise_rewards", "capacity"},
    "population": _ACTS | {"sigma", "normalise_rewards", "capacity"},
    "random": _ACTS | _EXPLORES,
    "constant": _ACTS | {"capacity"},
}
_LEVELS = 4  # bandit: values of each number of an action
_MEMORY = 0.98  # bandit: what a reward counts for a round later
_MEMBERS = 4  # population: actions that take turns
_SMOOTHING, _SMOOTHING_MOST = 0.2, 0.5  # td3: noise in the target action, and its bound
_DELAY = 2  # td3: steps of the critics for each step of the actor
_SECOND, _SMOOTH, _DRAW, _WHETHER, _COPY = (1 << 41 | k for k in range(5))  # salts of draws


def initial(spec: AgentSpec, seed: Tensor | int) -> Agent:
    """A player that has seen nothing."""
    agent = agents.initial(spec, seed)
    if spec.player == "td3":
        return agent | {"critic2": agents.initial_critic(spec, seed, _SECOND)}
    return (
        agent if spec.player == "ddpg" else {k: v for k, v in agent.items() if k not in ("actor", "critic")}
    )


def act(agent: Agent, state: Tensor, seed: Tensor | int, spec: AgentSpec) -> tuple[Tensor, Agent]:
    """The next action, in [-1, 1]^n."""
    if spec.player in WITH_NETWORKS:
        return agents.act(agent, state, seed, spec)
    return PROPOSALS[spec.player](agent, seed, spec), agent | {"acted": agent["acted"] + 1}


def learn(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Agent:
    """One step of learning, where there are networks; the others read their memory when they act."""
    if spec.player == "ddpg":
        return agents.learn(agent, seed, spec)
    return learn_td3(agent, seed, spec) if spec.player == "td3" else agent


def unused_by(player: str) -> dict[str, str]:
    """Settings of a game that have no effect with this player, and why."""
    if player in WITH_NETWORKS:
        return {}
    names = [f.name for f in fields(AgentSettings) if f.name not in USED[player]]
    found = {f"agent.{name}": f"the player {player} does not go by it" for name in names}
    found |= dict.fromkeys(
        ("server_scale", "server_mix", "proxy_rows"), f"with the player {player} the server has no agent"
    )
    still = dict.fromkeys(("client_scale", "client_mix"), "a constant action goes by no reward")
    return found | (still if player == "constant" else {})


# ---- without networks ----


def constant(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    return torch.full((spec.actions,), spec.initial_action)


def random(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    """A uniform draw, or the action that earned most: the more rounds have passed, the more often it."""
    actions, rewards, held = remembered(agent, spec)
    best = actions[rewards.where(held, -torch.inf).argmax()]
    best = torch.where(agent["stored"] > 0, best, constant(agent, seed, spec))
    draws = agents.uniform(seed, _WHETHER, 1)[0] < agents.noise_scale(agent["acted"], spec)
    return torch.where(draws, drawn(seed, spec), best)


def bandit(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    """The action of the grid whose reward, drawn from what is known of it, is largest. Of an action with n rewards of
    mean m, measured in units of all rewards' spread, that is N(m n / (n + 1), 1 / (n + 1))."""
    actions, rewards, held = remembered(agent, spec)
    arms = grid(spec.actions)  # (arms, actions)
    age = (agent["stored"] - 1 - torch.arange(len(rewards))) % len(rewards)
    weight = held * _MEMORY**age  # (memories,)
    same = (actions[:, None] - arms).abs().amax(-1) < 1e-4  # (memories, arms)
    spread = ((weight * rewards**2).sum() / weight.sum().clamp(min=1e-12)).sqrt().clamp(min=1e-12)
    many, total = weight @ same.float(), (weight * rewards / spread) @ same.float()
    draw = total / (many + 1) + agents.normal(seed, _DRAW, len(arms)) / (many + 1).sqrt()
    return arms[draw.argmax()]


def population(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    """The action whose turn it is, or a copy of the best one where it was the worst of the last turns."""
    actions, rewards, _ = remembered(agent, spec)
    turns = (agent["stored"] - _MEMBERS + torch.arange(_MEMBERS)) % len(rewards)
    mine, last = actions[turns[0]], rewards[turns]
    copy = actions[turns[last.argmax()]] + spec.sigma * agents.normal(seed, _COPY, spec.actions)
    next_one = torch.where(last.argmin() == 0, copy.clamp(-1, 1), mine)
    first = torch.where(agent["stored"] == 0, constant(agent, seed, spec), drawn(seed, spec))
    return torch.where(agent["stored"] >= _MEMBERS, next_one, first)


PROPOSALS: dict[str, Callable[[Agent, Tensor | int, AgentSpec], Tensor]] = {
    "bandit": bandit,
    "population": population,
    "random": random,
    "constant": constant,
}


def remembered(agent: Agent, spec: AgentSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (memories, n), their rewards (memories,), and which of them are no empty places."""
    memory, n, m = agent["memory"], spec.states, spec.actions
    return memory[:, n : n + m], memory[:, n + m], torch.arange(len(memory)) < agent["stored"]


def grid(numbers: int) -> Tensor:
    """Every combination of a few values from -1 to 1: (combinations, numbers)."""
    levels = torch.linspace(-1, 1, _LEVELS)
    return torch.cartesian_prod(*[levels] * numbers).reshape(-1, numbers)


def drawn(seed: Tensor | int, spec: AgentSpec) -> Tensor:
    return 2 * agents.uniform(seed, _DRAW, spec.actions) - 1


# ---- td3 ----


def learn_td3(agent: Agent, seed: Tensor | int, spec: AgentSpec) -> Agent:
    """One step of both critics, and every second time of the actor and of all target networks."""
    ready, learned = agents.is_ready(agent, spec), agent["learned"]
    due = ready & (learned % _DELAY == _DELAY - 1)
    actor, old = agent["actor"], [agent["critic"], agent["critic2"]]
    s, a, r, then = agents.sample(agent, seed, spec)
    y = r + spec.gamma * lower_value(agent, then, seed, spec)
    slopes = [grad(agents.critic_loss)(c["now"], s, a, y, spec) for c in old]
    new = [agents.adam(c, g, learned + 1, spec.critic_lr) for c, g in zip(old, slopes, strict=True)]
    up = grad(agents.actor_loss)(actor["now"], new[0]["now"], s, spec)
    new_actor = agents.adam(actor, up, learned // _DELAY + 1, spec.actor_lr)
    one, two = (
        agents.follow(n, spec.tau).where(due, n).where(ready, c) for n, c in zip(new, old, strict=True)
    )
    moved = agents.follow(new_actor, spec.tau).where(due, actor)
    return agent | {"actor": moved, "critic": one, "critic2": two, "learned": learned + ready.long()}


def lower_value(agent: Agent, then: Tensor, seed: Tensor | int, spec: AgentSpec) -> Tensor:
    """What the next states are worth to the target networks, by the lower of two critics, near the actor's action."""
    noise = _SMOOTHING * agents.normal(seed, _SMOOTH, len(then) * spec.actions).reshape(len(then), -1)
    a = agents.policy(agent["actor"]["target"], then, spec) + noise.clamp(-_SMOOTHING_MOST, _SMOOTHING_MOST)
    values = [agents.value(agent[c]["target"], then, a.clamp(-1, 1), spec) for c in ("critic", "critic2")]
    return torch.minimum(*values)
