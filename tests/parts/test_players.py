"""Players by hand, under vmap, and on a reward that they can find; TD3 against an ordinary implementation."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils import _pytree as pytree

from motet.parts import agents, players
from motet.parts.agents import Agent, AgentSettings, AgentSpec
from motet.parts.players import PlayerName
from motet.vec import leaves, stack, unstack

NAMES = get_args(PlayerName)
SMALL: dict[str, Any] = {
    "actor": (7, 5), "critic": (6, 4), "batch_size": 4, "capacity": 12, "warm_up": 2, "actor_lr": 0.01, "tau": 0.1,
    "noise_rate": 1.0, "noise_decay": 8,
}  # fmt: skip


def spec(player: str, states: int = 1, actions: int = 2, **settings: Any) -> AgentSpec:
    return AgentSettings(**SMALL | settings).sized(states, actions, player=player)


def remembering(settings: AgentSpec, *pairs: tuple[list[float], float]) -> Agent:
    """A player with these actions and rewards in its memory."""
    agent = players.initial(settings, 0)
    for action, reward in pairs:
        s = torch.zeros(settings.states)
        agent = agents.remember(agent, s, torch.tensor(action), torch.tensor(reward), s)
    return agent | {"acted": torch.tensor(len(pairs))}


def lived(agent: Agent, seed: Tensor, settings: AgentSpec, target: float = 0.3) -> Agent:
    """One round, in which an action a earns -|a - target|^2."""
    s = torch.full((settings.states,), 0.5)
    a, agent = players.act(players.learn(agent, seed, settings), s, seed, settings)
    return agents.remember(agent, s, a, -((a - target) ** 2).sum(), s)


@pytest.mark.parametrize("name", NAMES)
def test_many_players_at_once_are_players_one_by_one_and_stay_in_range(name: str) -> None:
    settings, seeds = spec(name), torch.tensor([5, 6, 7])
    apart = [players.initial(settings, seed) for seed in seeds]
    at_once = stack(apart)
    for t in range(14):
        now = seeds + 10 * t
        apart = [lived(agent, seed, settings) for agent, seed in zip(apart, now, strict=True)]
        at_once = vmap(lambda agent, seed: lived(agent, seed, settings))(at_once, now)
    pairs = [
        p
        for a, b in zip(apart, unstack(at_once, 3), strict=True)
        for p in zip(leaves(a), leaves(b), strict=True)
    ]
    assert max(float((a - b).abs().max()) for a, b in pairs) < 1e-5
    assert apart[0]["memory"][:, 1:3].abs().max() <= 1 and apart[0]["acted"] == 14


@pytest.mark.parametrize("name", ["td3", "bandit", "population", "random"])
def test_every_player_that_learns_finds_what_pays(name: str) -> None:
    """Reward -|a - 1/3|^2: what is played in the last rounds is near 1/3."""
    learning = {"gamma": 0.0, "hidden": "tanh", "actor": (40, 30), "critic": (40, 30), "actor_lr": 0.0005}
    how = {"capacity": 1000, "batch_size": 32, "warm_up": 50, "noise_decay": 300, "critic_lr": 0.01}
    settings, seeds = spec(name, 1, 1, **learning | how), torch.arange(3) * 1_000_003
    many = vmap(lambda seed: players.initial(settings, seed))(seeds)
    for t in range(600):
        many = vmap(lambda agent, seed: lived(agent, seed, settings, 1 / 3))(many, seeds + 17 * t)
    last = many["memory"][:, 580:600, 1].median(1).values
    assert last.tolist() == pytest.approx([1 / 3] * 3, abs=0.25)


def test_a_constant_player_plays_the_initial_action() -> None:
    settings = spec("constant", initial_action=0.4)
    agent = remembering(settings, ([1.0, 1.0], 9.0))
    assert players.act(agent, torch.zeros(1), 3, settings)[0].tolist() == pytest.approx([0.4, 0.4])


def test_a_random_player_ends_with_the_action_that_earned_most() -> None:
    settings = spec("random")
    agent = remembering(settings, ([0.1, 0.2], -3.0), ([-0.5, 0.7], -1.0), ([0.9, 0.9], -2.0))
    late = agent | {"acted": torch.tensor(8)}  # noise_decay: it draws no more
    assert players.act(late, torch.zeros(1), 3, settings)[0].tolist() == pytest.approx([-0.5, 0.7])
    first = players.initial(settings, 0)  # it draws always
    drawn = torch.stack([players.act(first, torch.zeros(1), seed, settings)[0] for seed in range(200)])
    assert drawn.var(0).tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.08)


def test_of_a_population_the_worst_becomes_a_copy_of_the_best_and_others_play_on() -> None:
    settings = spec("population", sigma=0.0)
    others = [([0.1, 0.1], 2.0), ([0.5, -0.5], 7.0), ([0.3, 0.3], 3.0)]
    worst = remembering(settings, ([-1.0, -1.0], 1.0), *others)  # the first one's turn comes again
    assert players.act(worst, torch.zeros(1), 1, settings)[0].tolist() == [0.5, -0.5]
    good = remembering(settings, ([-1.0, -1.0], 5.0), *others)
    assert players.act(good, torch.zeros(1), 1, settings)[0].tolist() == [-1.0, -1.0]
    noisy = spec("population", sigma=0.2)
    assert players.act(worst, torch.zeros(1), 1, noisy)[0].tolist() != [0.5, -0.5]


def test_a_bandit_plays_the_arm_that_earned_and_forgets_slowly() -> None:
    settings = spec("bandit", 1, 1, capacity=200)
    good, bad = [[1.0], [-1.0]]
    grid = players.grid(1).flatten().tolist()
    assert grid == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    all_tried = [([a], -1.0) for a in grid for _ in range(20)]
    agent = remembering(settings, *all_tried, *[(good, 3.0)] * 20)
    played = [players.act(agent, torch.zeros(1), seed, settings)[0].item() for seed in range(40)]
    assert sum(a == 1.0 for a in played) > 30
    turned = remembering(settings, *all_tried, *[(good, 3.0)] * 20, *[(good, -3.0)] * 40, *[(bad, 3.0)] * 30)
    played = [players.act(turned, torch.zeros(1), seed, settings)[0].item() for seed in range(40)]
    assert sum(a == -1.0 for a in played) > 30


# ---- TD3 ----


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 6), nn.Linear(6 + 2, 4), nn.Linear(4, 1)

    def forward(self, s: Tensor, a: Tensor) -> Tensor:
        z: Tensor = self.three(self.two(torch.cat([self.one(s).relu(), a], 1)).relu())
        return z[:, 0]


def test_six_steps_of_td3_are_those_of_an_ordinary_implementation() -> None:
    settings = spec("td3", states=3)
    agent = players.initial(settings, 3)
    for t in range(8):
        s, then = (agents.normal(300 + t, salt, 3) for salt in (7, 8))
        a, agent = players.act(agent, s, 300 + t, settings)
        agent = agents.remember(agent, s, a, s.sum() - a.sum(), then)
    agent = pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, agent)
    names = ("actor", "critic", "critic2")
    nets: dict[str, nn.Module] = {
        "actor": nn.Sequential(
            nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2), nn.Tanh()
        )
    }
    nets |= {"critic": Critic(), "critic2": Critic()}
    for name in names:
        nn.utils.vector_to_parameters(agent[name]["now"].clone(), nets[name].double().parameters())
    assert not torch.equal(agent["critic"]["now"], agent["critic2"]["now"])
    targets = copy.deepcopy(nets)
    rates = {"actor": settings.actor_lr, "critic": settings.critic_lr, "critic2": settings.critic_lr}
    adam = {k: torch.optim.Adam(nets[k].parameters(), lr=rates[k]) for k in names}
    for t in range(6):
        s, a, r, then = agents.sample(agent, t, settings)
        with torch.no_grad():
            noise = (0.2 * agents.normal(t, players._SMOOTH, 8).reshape(4, 2)).clamp(-0.5, 0.5)
            next_a = (targets["actor"](then) + noise).clamp(-1, 1)
            y = r + settings.gamma * torch.minimum(*(targets[k](then, next_a) for k in names[1:]))
        for k in names[1:]:
            adam[k].zero_grad()
            nn.functional.mse_loss(nets[k](s, a), y).backward()
            adam[k].step()
        if t % 2 == 1:
            adam["actor"].zero_grad()
            (-nets["critic"](s, nets["actor"](s)).mean()).backward()
            adam["actor"].step()
            for k in names:
                for p, q in zip(targets[k].parameters(), nets[k].parameters(), strict=True):
                    p.data.lerp_(q.data, settings.tau)
        agent = players.learn(agent, t, settings)
    for k in names:
        for row, net in (("now", nets[k]), ("target", targets[k])):
            expected = nn.utils.parameters_to_vector(net.parameters()).detach()
            assert (agent[k][row] - expected).abs().max() < 1e-8
    assert agent["learned"] == 6
