"""The server of a game in which clients lead: it follows with weights p, and may choose how far it goes.

Scores of clients' models, its agent's proposal, candidates, the length of the step, and rewards. A game whose clients
train in another way says what a mean of replies makes of the global model (`merged`, `single_models`, `carried`).
Knows replies, the proxy set and rewards. Does not know how clients train.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.client import Batch
from motet.core import Client, Count, Method, MethodUnfit, NotNegative, Positive, Share, Talk, Tree, Turn
from motet.parts import games, step_lengths
from motet.parts.agents import AgentSettings
from motet.parts.follower import Follower, Reward, full, unfit
from motet.parts.games import AGENT
from motet.parts.players import WITH_NETWORKS, PlayerName, unused_by
from motet.parts.unused_settings import refuse_unused
from motet.vec import Vec, stack


class FollowingServer(Method):
    """Settings and steps of a server that answers clients' models with weights."""

    beyond_budget = "losses are measured on rows, and agents choose numbers of steps by them"

    reward: Literal["proxy", "paper"] = "proxy"  # the server's: from its proxy set, or from clients' losses
    eps: Positive = 0.01  # added to every loss before it is inverted to a reward
    server_scale: Positive = 1.0  # factor on the reward of the server
    server_mix: NotNegative = 0.0  # weight of the clients' mean reward in the server's reward
    candidates: Count = 8  # choices of p that the server compares in a round; 1 = it takes its agent's
    stride: Positive = 0.1  # distance between two of these choices, on the scale of actions, [-1, 1]
    floor: Share = 0.25  # smallest weight of a client, as a share of the largest; 1 = all weights are equal
    step_max: Annotated[float, ">= 1"] = 1.0  # largest length s of the server's step; 1 = W(t+1) is the mean
    step_rule: Literal["search", "fedexp"] = "search"  # s: by the reward of several, or by how clients differ
    player: PlayerName = "ddpg"  # who chooses eta and alpha (parts/players.py), and with networks p too
    proxy_rows: Annotated[int, ">= 0"] = 500  # proxy examples on which each client's model is scored; 0 = all
    max_clients: Annotated[int, ">= 0"] = 0  # seats of the server's agent; 0 = twice the clients at the start
    agent: AgentSettings = AGENT  # the agents of the server and of the clients (DDPG)

    def check(self) -> None:
        super().check()
        refuse_unused(self, self.unused())

    def unused(self) -> dict[str, str]:
        """Settings that have no effect, given the others, and why."""
        found = {}
        if self.candidates == 1:
            found["stride"] = "the server compares no candidates"
        if self.floor == 1:
            found["stride"] = "all weights are equal, method.floor is 1"
            found |= {"candidates": found["stride"]} if self.candidates > 1 else {}
        if self.step_max == 1:
            found["step_rule"] = "the server takes the mean, method.step_max is 1"
        elif self.reward == "paper" and self.step_rule == "search":
            found["reward"] = "the paper's reward is the same for every length of the server's step"
        if self.agent.normalise_rewards:
            sides = [f"{side}_scale" for side in ("client", "server") if not getattr(self, f"{side}_mix", 0)]
            found |= dict.fromkeys(sides, "normalised rewards have no unit; *_mix is what biases them")
        return found | unused_by(self.player)

    def start(self, turn: Turn) -> Tree | Talk:
        if wrong := unfit(turn.proxy, self.task.statistics):
            raise MethodUnfit(wrong)
        many = self.max_clients or 2 * len(turn.clients)
        me = self.server(many).initial(turn.seed)
        rest = {"now": torch.zeros(many), "seats": {}, "metrics": {}, "step": torch.ones(2)}
        return me | {"w": self.task.w0} | rest

    def follow(self, state: Tree, turn: Turn, replies: dict[Client, Tree]) -> Tree:
        """The server's answer to the models w_i: weights p, a length s, W(t+1) = W + s (sum p_i w_i - W)."""
        found, w, proxy = stack([replies[c] for c in sorted(replies)]), state["w"], turn.proxy
        found["f"] = found["f"].clamp(min=0)  # losses, whatever was sent
        found["score"] = self.scores(state, turn, found)

        def led(p: Tensor, s: Tensor) -> Vec:
            return self.stepped(w, self.merged(state, turn, found, p), s)

        def reward(p: Tensor, s: Tensor = state["step"][0]) -> Tensor:  # all candidates go equally far
            return self.earned(led(p, s), p, found["f"], proxy)

        p, me = self.choose(state, turn, sorted(replies), found, reward)
        step = self.step(state, turn, found, p, partial(reward, p))
        after = led(p, step[0])
        result = self.outcome(after, p, found["f"], proxy) | {"step": step}
        if self.step_max > 1:
            result["metrics"]["step"] = step[0]
        return self.compared(me, result) | result | self.carried(state, turn, found, p, after)

    def scores(self, state: Tree, turn: Turn, found: Tree) -> Tensor:
        """Accuracy of every w_i on the proxy set, (clients,); 0 where no agent of the server's sees it."""
        if self.player not in WITH_NETWORKS:
            return torch.zeros(len(found["f"]))
        some = games.evenly_spaced(turn.proxy, self.proxy_rows)
        return games.accuracies(self.task, self.single_models(state, turn, found), some)

    def single_models(self, state: Tree, turn: Turn, found: Tree) -> Vec:
        """The model that each client alone would make of W, (clients, …)."""
        return found["w"]  # type: ignore[no-any-return]

    def merged(self, state: Tree, turn: Turn, found: Tree, p: Tensor) -> Vec:
        return games.weighted_mean(found["w"], p)  # type: ignore[no-any-return]

    def carried(self, state: Tree, turn: Turn, found: Tree, p: Tensor, w: Vec) -> Tree:
        """What the server carries on besides the game's own."""
        return {}

    def stepped(self, w: Vec, mean: Vec, s: Tensor) -> Vec:
        return mean if self.step_max == 1 else step_lengths.stepped(w, mean, s)

    def step(self, state: Tree, turn: Turn, found: Tree, p: Tensor, reward: Reward) -> Tensor:
        """The length of this round's step, and what it will count in the next round: (2,)."""
        if self.step_max == 1:
            return state["step"]  # type: ignore[no-any-return]
        if self.step_rule == "search":
            return step_lengths.searched(reward, self.step_max).repeat(2)
        now = step_lengths.extrapolated(self.single_models(state, turn, found) - state["w"], p)
        return torch.stack([(state["step"][1] + now) / 2, now]).clamp(max=self.step_max)

    def compared(self, me: Tree, result: Tree) -> Tree:
        """The follower, whose candidates' rewards are held against the chosen one's at the same length."""
        if self.step_max == 1:
            return me
        tried = me["tried"]
        return me | {"tried": tried | {"r": tried["r"] + (result["r"] - me["r"])}}

    def choose(self, state: Tree, turn: Turn, who: list[Client], found: Tree, reward: Reward) -> Tree:
        """(p of those who replied, the server's agent); an absent client keeps its last accuracy."""
        members, many = {*turn.clients, *turn.cohort}, len(state["now"])
        if (seats := games.assign_seats(state["seats"], members, many)) is None:
            raise MethodUnfit(full(many, len(members)))
        at = torch.tensor([seats[c] for c in who])
        now = state["now"].index_put((at,), found["score"])
        bonus = self.server_mix * self.worth(found["f"]).mean()
        p, me = self.server(many).move(state, now, at, reward, bonus, turn.seed)
        return p, me | {"now": now, "seats": seats}

    def earned(self, w: Vec, p: Tensor, f: Tensor, proxy: Batch) -> Tensor:
        """The server's reward for W(t+1) = w."""
        if self.reward == "paper":
            return self.server_scale * self.worth(p.float() @ f)  # F(W(t+1)) of equation 1
        loss, _ = games.loss_and_accuracy(self.task, partial(self.task.predict, w), proxy)
        return self.server_scale * self.worth(loss)

    def outcome(self, w: Vec, p: Tensor, f: Tensor, proxy: Batch) -> Tree:
        r = self.earned(w, p, f, proxy)
        metrics = {"server": r, "clients": self.worth(f).mean(), "effective clients": 1 / p.square().sum()}
        metrics |= {"largest weight": p.max(), "smallest weight": p.min()}
        return {"w": w, "r": r, "metrics": metrics}

    def server(self, many: int) -> Follower:
        player = self.player if self.player in WITH_NETWORKS else "constant"
        spec = self.agent.sized(
            many, many, sigma=0.0, initial_action=0.0, player=player
        )  # it acts without noise
        # where all weights are equal, there is nothing to compare
        return Follower(spec, 1 if self.floor == 1 else self.candidates, self.stride, self.floor)

    def metrics(self, state: Tree) -> dict[str, float]:
        """Rewards of the server and, on average, of clients; how many clients of equal weight p amounts to, and its
        largest and smallest weight; how far the server went, where it may go further than to the mean."""
        return {k: float(v) for k, v in state["metrics"].items()}

    def worth(self, loss: Tensor) -> Tensor:
        return 1 / (self.eps + loss.clamp(min=0))  # a loss of one's own may be below 0
