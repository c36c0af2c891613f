"""Agents against an ordinary implementation of DDPG, and what makes them plain data."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from motet.parts import agents
from motet.parts.agents import Agent, AgentSettings, AgentSpec
from motet.vec import Vec, leaves, stack, unstack
from motet.wire import pack, unpack

SMALL = AgentSettings(
    actor=(7, 5), critic=(6, 4), batch_size=4, capacity=9, warm_up=2, actor_lr=0.01, tau=0.1
).sized(states=3, actions=2)


def spec(states: int = 1, actions: int = 1, **settings: Any) -> AgentSpec:
    return AgentSettings(**settings).sized(states, actions)


def lived(settings: AgentSpec, seed: int, steps: int) -> Agent:
    """An agent that has acted and remembered, and has not learned."""
    agent = agents.initial(settings, seed)
    for t in range(steps):
        s, then = (agents.normal(seed * 100 + t, salt, settings.states) for salt in (7, 8))
        a, agent = agents.act(agent, s, seed * 100 + t, settings)
        agent = agents.remember(agent, s, a, s.sum() - a.sum(), then)
    return agent


def gap(a: Any, b: Any) -> float:
    return max(float((p - q).abs().max()) for p, q in zip(leaves(a), leaves(b), strict=True))


# ---- the update, against torch's modules, autograd and optimisers ----


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 6), nn.Linear(6 + 2, 4), nn.Linear(4, 1)

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        z: Tensor = self.three(self.two(torch.cat([self.one(s).relu(), a], 1)).relu())
        return z[:, 0]


class Ordinary:
    """DDPG as it is usually written."""

    def __init__(self, agent: Agent) -> None:
        self.actor: nn.Module = nn.Sequential(
            nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2), nn.Tanh()
        )
        self.critic: nn.Module = Critic()
        for net, name in ((self.actor.double(), "actor"), (self.critic.double(), "critic")):
            nn.utils.vector_to_parameters(agent[name]["now"].clone(), net.parameters())  # they become views
        self.target_actor, self.target_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), lr=SMALL.actor_lr)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), lr=SMALL.critic_lr)

    def learn(self, s: Tensor, a: Tensor, r: Tensor, then: Tensor) -> None:
        with torch.no_grad():
            y = r + SMALL.gamma * self.target_critic(then, self.target_actor(then))
        self.of_critic.zero_grad()
        nn.functional.mse_loss(self.critic(s, a), y).backward()
        self.of_critic.step()
        self.of_actor.zero_grad()
        (-self.critic(s, self.actor(s)).mean()).backward()
        self.of_actor.step()
        for target, net in ((self.target_actor, self.actor), (self.target_critic, self.critic)):
            for p, q in zip(target.parameters(), net.parameters(), strict=True):
                p.data.lerp_(q.data, SMALL.tau)


def test_five_steps_of_learning_are_those_of_an_ordinary_implementation() -> None:
    agent = pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, lived(SMALL, 3, 8))
    ordinary = Ordinary(agent)
    for t in range(5):
        ordinary.learn(*agents.sample(agent, t, SMALL))
        agent = agents.learn(agent, t, SMALL)
    row = nn.utils.parameters_to_vector
    for name in ("actor", "critic"):
        now, target = getattr(ordinary, name), getattr(ordinary, f"target_{name}")
        assert gap(agent[name]["now"], row(now.parameters()).detach()) < 1e-8
        assert gap(agent[name]["target"], row(target.parameters()).detach()) < 1e-8
    assert agent["learned"] == 5


def test_nothing_is_learned_before_the_warm_up_is_over_and_a_batch_is_remembered() -> None:
    young, poor = lived(SMALL, 1, 1), lived(SMALL, 1, 3)
    assert gap(agents.learn(young, 0, SMALL), young) == 0
    assert gap(agents.learn(poor, 0, SMALL), poor) == 0
    ready = lived(SMALL, 1, 4)
    assert gap(agents.learn(ready, 0, SMALL)["actor"], ready["actor"]) > 0


def test_an_agent_learns_what_pays() -> None:
    """Reward -(a - 0.3)^2, in one step: the actor comes to 0.3."""
    settings = spec(1, 1, gamma=0.0, hidden="tanh", critic_lr=0.01, warm_up=50, noise_rate=1.0)
    s = torch.full((1,), 0.5)

    def live(agent: Agent, seed: Tensor) -> Agent:
        a, agent = agents.act(agent, s, seed, settings)
        return agents.learn(agents.remember(agent, s, a, -((a - 0.3) ** 2).sum(), s), seed, settings)

    seeds = torch.arange(3) * 1_000_003
    many = vmap(lambda seed: agents.initial(settings, seed))(seeds)
    for t in range(500):
        many = vmap(live)(many, seeds + 17 * t)
    chosen = [agents.policy(w, s, settings).item() for w in many["actor"]["now"]]
    assert chosen == pytest.approx([0.3] * 3, abs=0.1)


# ---- plain data ----


def test_many_agents_at_once_are_agents_one_by_one() -> None:
    def live(agent: Agent, seed: Tensor) -> Agent:
        s = agents.normal(seed, 1, 3)
        a, agent = agents.act(agent, s, seed, SMALL)
        return agents.learn(agents.remember(agent, s, a, a.sum(), -s), seed, SMALL)

    seeds = torch.tensor([5, 6, 7])
    apart = [agents.initial(SMALL, seed) for seed in seeds]
    at_once = stack(apart)
    for t in range(12):
        apart = [live(agent, seed + 10 * t) for agent, seed in zip(apart, seeds, strict=True)]
        at_once = vmap(live)(at_once, seeds + 10 * t)
    assert max(gap(a, b) for a, b in zip(apart, unstack(at_once, 3), strict=True)) < 1e-6
    assert apart[0]["learned"] == 9


def test_an_agent_goes_over_the_wire() -> None:
    agent = lived(SMALL, 2, 5)
    there = unpack(pack(agent))
    assert gap(agent, there) == 0 and isinstance(there["actor"], Vec)
    assert gap(agents.learn(agent, 1, SMALL), agents.learn(there, 1, SMALL)) == 0


def test_no_function_changes_what_it_is_given() -> None:
    agent = lived(SMALL, 2, 5)
    before = unpack(pack(agent))
    lived_on = agents.remember(agent, torch.ones(3), torch.ones(2), torch.tensor(1.0), torch.ones(3))
    agents.act(agents.learn(lived_on, 4, SMALL), torch.ones(3), 4, SMALL)
    assert gap(agent, before) == 0


def test_memory_overwrites_the_oldest() -> None:
    settings = spec(1, 1, capacity=3)
    agent = agents.initial(settings, 0)
    for t in range(5):
        now = torch.full((1,), float(t))
        agent = agents.remember(agent, now, -now, now[0], now + 1)
    agent = agents.remember(agent, now, now, now[0], now, when=False)
    assert agent["stored"] == 5
    assert agent["memory"].tolist() == [[3, -3, 3, 4], [4, -4, 4, 5], [2, -2, 2, 3]]
    s, *_ = agents.sample(agent, 1, spec(1, 1, capacity=3, batch_size=64))
    assert set(s.flatten().tolist()) == {2, 3, 4}


# ---- actions ----


def test_first_actions_are_uniform_and_later_ones_are_the_actors_with_noise() -> None:
    settings = spec(1, 1000, warm_up=1, capacity=1)
    agent = agents.initial(settings, 4)
    first, agent = agents.act(agent, torch.ones(1), 11, settings)
    assert first.min() >= -1 and first.max() < 1
    moments = [first.mean().item(), first.var().item()]
    assert moments == pytest.approx([0, 1 / 3], abs=0.06)
    assert gap(agent["noise"], torch.zeros(1000)) == 0
    second, agent = agents.act(agent, torch.ones(1), 12, settings)
    noise = second - agents.policy(agent["actor"]["now"], torch.ones(1), settings)
    assert noise.std().item() == pytest.approx(0.2 * 0.01**0.5, rel=0.1)  # sigma sqrt(noise_rate)
    assert gap(noise, agent["noise"]) < 1e-7


def test_noise_fades_linearly_or_never() -> None:
    for decay, left in ((4, [1, 0.75, 0.5, 0.25, 0, 0]), (0, [1] * 6)):
        settings = spec(1, 1, warm_up=2, noise_decay=decay, sigma=0.5)
        agent = agents.initial(settings, 0) | {"acted": torch.tensor(2)}
        for t, share in enumerate(left):
            a, agent = agents.act(agent, torch.ones(1), t, settings)
            quiet = agents.policy(agent["actor"]["now"], torch.ones(1), settings)
            assert gap(a - quiet, share * agent["noise"]) < 1e-6


def test_noise_has_the_mean_and_variance_of_an_ornstein_uhlenbeck_process() -> None:
    settings = spec(1, 4000, noise_rate=0.1)
    noise = torch.zeros(4000)
    for t in range(400):  # six times as long as the process remembers: 1 / (theta noise_rate) steps
        noise = agents.drift(noise, t, settings)
    assert noise.mean().item() == pytest.approx(0, abs=0.03)
    assert noise.var().item() == pytest.approx(0.2**2 / (2 * 0.15), rel=0.08)  # sigma^2 / (2 theta)


def test_normal_draws_have_the_moments_of_a_normal_distribution() -> None:
    z = agents.normal(9, 0, 100_000)
    moments = [(z**k).mean().item() for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)


# ---- sizes ----


def test_weights_start_within_the_fan_in_and_the_last_layer_near_zero() -> None:
    settings = spec(states=2, actions=3)
    agent = agents.initial(settings, 1)
    layers = agents._unfold(agent["critic"]["now"], agents.critic_layers(settings))
    assert [tuple(w.shape) for w, _ in layers] == [(40, 2), (30, 43), (1, 30)]
    for (w, b), bound in zip(layers, (2**-0.5, 43**-0.5, 0.003), strict=True):
        assert 0.8 * bound < w.abs().max() < bound and b.abs().max() < bound
    assert gap(agent["actor"]["now"], agent["actor"]["target"]) == 0


def test_the_sizes_of_dap_fl_can_be_expressed() -> None:
    paper = spec(states=3, actions=2, actor=(10, 5), critic=(5,), state_layers=0, hidden="tanh")
    assert agents.actor_layers(paper) == [(10, 3), (5, 10), (2, 5)]
    assert agents.critic_layers(paper) == [(5, 5), (1, 5)]


def test_a_critic_that_never_sees_the_action_is_refused() -> None:
    with pytest.raises(ValueError, match="never see the action.*\nhint: state_layers must be 0 to 2"):
        spec(1, 1, state_layers=3)


# ---- normalised rewards, and where actions start ----


def test_a_relative_reward_is_its_difference_from_the_running_mean() -> None:
    settings = spec(states=1, actions=1, normalise_rewards=True)
    agent, found = agents.initial(settings, 0), []
    for r in (5.0, 7.0, 7.0):
        relative, agent = agents.relative_reward(agent, torch.tensor(r), settings)
        found.append(relative.item())
        agent = agents.remember(agent, torch.zeros(1), torch.zeros(1), relative, torch.zeros(1))
    assert found == pytest.approx([0.0, 2.0, 1.8])  # the level is 5, then 5, then 5.2
    assert agents.relative_reward(agent, torch.tensor(3.0), spec(states=1, actions=1))[0] == 3.0


def test_a_reward_that_is_not_remembered_leaves_the_level_as_it_was() -> None:
    settings = spec(states=1, actions=1, normalise_rewards=True)
    _, agent = agents.relative_reward(agents.initial(settings, 0), torch.tensor(5.0), settings, when=False)
    assert agent["level"] == 0


def test_learning_from_normalised_rewards_does_not_depend_on_the_scale_of_rewards() -> None:
    settings = dataclasses.replace(SMALL, normalise_rewards=True)
    found = []
    for scale in (1.0, 1000.0):
        agent = lived(settings, 3, 8)
        agent["memory"][:, 5] *= scale
        found.append(agents.sample(agent, 1, settings)[2])
    assert torch.allclose(found[0], found[1], rtol=1e-5)


def test_actions_start_at_the_initial_action() -> None:
    settings = spec(states=1, actions=2, initial_action=0.9, warm_up=0, sigma=0.0)
    a, _ = agents.act(agents.initial(settings, 1), torch.ones(1), 1, settings)
    assert a.tolist() == pytest.approx([0.9, 0.9], abs=0.01)


def test_several_memories_at_once_are_those_one_after_another() -> None:
    rows = torch.arange(5 * 9.0).reshape(5, 9)
    one = agents.initial(SMALL, 0)
    for row in rows:
        one = agents.remember(one, row[:3], row[3:5], row[5], row[6:])
    many = agents.remember_all(agents.initial(SMALL, 0), rows)
    assert torch.equal(one["memory"], many["memory"]) and one["stored"] == many["stored"]
    assert torch.equal(agents.remember_all(many, torch.cat([rows] * 3))["memory"].unique(dim=0), rows)
