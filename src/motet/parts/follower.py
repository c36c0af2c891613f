"""The follower of a game: a server that has seen the clients' models, and chooses their weights in the mean.

Its agent proposes weights. The server holds all models and can compute its own reward, so it may compare several
`candidates` before it chooses one: the agent's action, the action of the round before, and then steps from the
better of these two, each of length `stride` in the direction in which the reward rises. All candidates enter the
agent's memory with the reward that each would have earned. The next state is known for the chosen one only, and
is written down for all of them.

A server that looks only at the reward of one round prefers clients whose models hardly differ from the last mean:
they cost nothing now. A `floor` keeps it from giving nearly all weight to them.

Knows agents, weights and rewards. Does not know what is rewarded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from motet.client import Batch
from motet.parts import agents, games, players
from motet.parts.agents import AgentSpec

Me = dict[str, Any]  # what the follower carries from round to round
Reward = Callable[[Tensor], Tensor]  # of the weights of those present, which sum to one


@dataclass(frozen=True)
class Follower:
    """How the server chooses. `at` are the seats of the clients that are present."""

    spec: AgentSpec
    candidates: int = 1  # actions compared in a round; 1 = the agent's own
    stride: float = 0.1  # distance of two candidates, root mean square over the clients
    floor: float = 0.0  # smallest weight of a client, as a share of the largest possible one

    def initial(self, seed: int) -> Me:
        none, one = torch.zeros(self.spec.actions), torch.zeros(())
        tried = {"a": none[None][:0], "r": one[None][:0]}  # not chosen, and their rewards
        return {"agent": players.initial(self.spec, seed), "s": none, "a": none, "r": one, "tried": tried}

    def move(
        self, me: Me, s: Tensor, at: Tensor, reward: Reward, bonus: Tensor, seed: int
    ) -> tuple[Tensor, Me]:
        """A round: learn from the last one, which led to the state `s` and earned a bonus since, and choose."""
        return self.choose(self.learn(me, s, bonus, seed), at, reward, seed)

    def learn(self, me: Me, s: Tensor, bonus: Tensor, seed: int) -> Me:
        """Remember the last round's candidates, with the state that followed, and learn."""
        agent = me["agent"]
        if agent["acted"]:
            a = torch.cat([me["a"][None], me["tried"]["a"]])  # (candidates, seats)
            chosen, agent = agents.relative_reward(agent, me["r"] + bonus, self.spec)
            r = torch.cat([me["r"][None], me["tried"]["r"]]) - me["r"] + chosen
            before, then = (v.expand(len(a), -1) for v in (me["s"], s))
            agent = agents.remember_all(agent, torch.cat([before, a, r[:, None], then], 1))
        return me | {"agent": players.learn(agent, seed, self.spec), "s": s}

    def choose(self, me: Me, at: Tensor, reward: Reward, seed: int) -> tuple[Tensor, Me]:
        """Weights of those present, and the follower that chose them."""
        a, agent = players.act(me["agent"], me["s"], seed, self.spec)
        found = self.search(a, me["a"], at, reward) if self.candidates > 1 else [(a, torch.zeros(()))]
        best = max(range(len(found)), key=lambda k: float(found[k][1]))  # the first of several
        others = [f for k, f in enumerate(found) if k != best]
        tried = {
            "a": torch.stack([a for a, _ in others]) if others else a[None][:0],
            "r": torch.stack([r for _, r in others]) if others else a[:0],
        }
        action, r = found[best]
        return self.weights(action, at), me | {"agent": agent, "a": action, "r": r, "tried": tried}

    def search(self, own: Tensor, last: Tensor, at: Tensor, reward: Reward) -> list[tuple[Tensor, Tensor]]:
        """Candidates and their rewards: the agent's own action, the last one, and steps up from the better one."""
        found = [self.with_slope(a, at, reward) for a in (own, last)]
        here = max(found, key=lambda f: float(f[1]))
        for _ in range(self.candidates - 2):
            a, _, slope = here
            step = slope / slope[at].square().mean().sqrt().clamp(min=1e-12)
            here = self.with_slope((a + self.stride * step).clamp(-1, 1), at, reward)
            found.append(here)
        return [(a, r) for a, r, _ in found]

    def with_slope(self, action: Tensor, at: Tensor, reward: Reward) -> tuple[Tensor, Tensor, Tensor]:
        """An action, its reward, and the gradient of the reward there."""
        with torch.enable_grad():
            a = action.detach().requires_grad_(True)
            r = reward(self.weights(a, at))
            (slope,) = torch.autograd.grad(r, a)
        return action.detach(), r.detach(), slope

    def weights(self, action: Tensor, at: Tensor) -> Tensor:
        return games.shares(action[at], self.floor)


def unfit(proxy: Batch | None, statistics: str) -> str:
    """Why a server cannot score models, "" if it can."""
    if proxy is None or not len(proxy):
        return (
            "page's server scores models on examples of its own, and it has none.\n"
            "hint: data.proxy=0.2 gives it a fifth of the federation's own test set; data without such a set "
            "need data.server_test=0.2 data.proxy=0.5; in a federation of sites, data.server=FILE data.target=COLUMN"
        )
    if statistics == "local":
        return (
            "page's server scores models, and cannot where batch statistics are local: it has none.\n"
            "hint: net.norm=group, or net.statistics=averaged"
        )
    return ""


def full(seats: int, clients: int) -> str:
    """What is wrong where the agent has fewer seats than there are clients."""
    return (
        f"page's server has {seats} seats for clients, and there are {clients}.\n"
        f"hint: method.max_clients={2 * clients}, from the start of the run"
    )
