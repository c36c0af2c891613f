"""Who follows in a game: a server that has seen the others' models, and chooses what each weighs in the mean.

Its agent proposes. As it holds all models and knows its own pay-off, it may play several choices in its head
before it plays one (`looks`): from the better of the agent's proposal and the choice of the round before, each
look goes a stride up the pay-off's slope. All of them are remembered with what they would have earned and, for
want of better, with what the played one led to.

A mind that only looks at the next pay-off is drawn to clients whose models hardly differ from the last mean:
they keep everything as it is, which beats any step that costs something now. A `floor` keeps it from giving
nearly all weight to those.

Knows agents, shares and pay-offs. Does not know what is paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from motet.client import Batch
from motet.parts import agents
from motet.parts import games as game

Me = dict[str, Any]  # what the follower carries from round to round
Payoff = Callable[[Tensor], Tensor]  # shares of those present, summing to one, to what they earn


@dataclass(frozen=True)
class Follower:
    """How the server plays."""

    mind: agents.AgentSettings
    looks: int = 1  # choices it considers in a round; 1 = the agent's own
    stride: float = 0.1  # how far apart two looks are, root mean square over the players
    floor: float = 0.0  # the least that a player can weigh, as a part of the most
    raw: bool = False  # remember shares, and not the actions that they were made of

    def newborn(self, seed: int) -> Me:
        none, one = torch.zeros(self.mind.actions), torch.zeros(())
        tried = {"a": none[None][:0], "r": one[None][:0]}  # what was considered and not played
        return {"agent": agents.born(self.mind, seed), "s": none, "a": none, "r": one, "tried": tried}

    def plays(
        self, me: Me, s: Tensor, at: Tensor, payoff: Payoff, bonus: Tensor, seed: int
    ) -> tuple[Tensor, Me]:
        """A round: what the last one led to and earned since, and shares of the players in the seats `at`."""
        return self.responds(self.sees(me, s, bonus, seed), at, payoff, seed)

    def sees(self, me: Me, s: Tensor, bonus: Tensor, seed: int) -> Me:
        """Where the last round's choices led to, and what they earned since: remember, and learn from it."""
        agent = me["agent"]
        if agent["acted"]:
            a = torch.cat([me["a"][None], me["tried"]["a"]])
            played, agent = agents.surprise(agent, me["r"] + bonus, self.mind)
            r = torch.cat([me["r"][None], me["tried"]["r"]]) - me["r"] + played
            before, then = (v.expand(len(a), -1) for v in (me["s"], s))
            agent = agents.remember_all(agent, torch.cat([before, a, r[:, None], then], 1))
        return me | {"agent": agents.learn(agent, seed, self.mind), "s": s}

    def responds(self, me: Me, at: Tensor, payoff: Payoff, seed: int) -> tuple[Tensor, Me]:
        """Shares of the players in the seats `at`, and the follower that chose them."""
        a, agent = agents.act(me["agent"], me["s"], seed, self.mind)
        found = self.look(a, me["a"], at, payoff) if self.looks > 1 else [(a, torch.zeros(()))]
        best = max(range(len(found)), key=lambda k: float(found[k][1]))  # the first of several
        others = [f for k, f in enumerate(found) if k != best]
        tried = {
            "a": torch.stack([a for a, _ in others]) if others else a[None][:0],
            "r": torch.stack([r for _, r in others]) if others else a[:0],
        }
        p = self.shares(found[best][0], at)
        kept = torch.zeros_like(a).index_put((at,), p.to(a.dtype)) if self.raw else found[best][0]
        return p, me | {"agent": agent, "a": kept, "r": found[best][1], "tried": tried}

    def look(self, own: Tensor, last: Tensor, at: Tensor, payoff: Payoff) -> list[tuple[Tensor, Tensor]]:
        """Actions and what each would earn: the agent's own, the last one, and from the better one upwards."""
        found = [self.weighed(a, at, payoff) for a in (own, last)]
        here = max(found, key=lambda f: float(f[1]))
        for _ in range(self.looks - 2):
            a, _, slope = here
            step = slope / slope[at].square().mean().sqrt().clamp(min=1e-12)
            here = self.weighed((a + self.stride * step).clamp(-1, 1), at, payoff)
            found.append(here)
        return [(a, r) for a, r, _ in found]

    def weighed(self, action: Tensor, at: Tensor, payoff: Payoff) -> tuple[Tensor, Tensor, Tensor]:
        """An action, what it would earn, and the slope there."""
        with torch.enable_grad():
            a = action.detach().requires_grad_(True)
            r = payoff(self.shares(a, at))
            (slope,) = torch.autograd.grad(r, a)
        return action.detach(), r.detach(), slope

    def shares(self, action: Tensor, at: Tensor) -> Tensor:
        return game.shares(action[at], self.floor)


def unfit(proxy: Batch | None, statistics: str, looks: int, private: bool) -> str:
    """Why a server cannot play, "" if it can."""
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
    if private and looks > 1:
        return (
            f"page's server is to look at {looks} choices of p, and with private=true it sees no models "
            "to look with.\nhint: method.looks=1"
        )
    return ""
