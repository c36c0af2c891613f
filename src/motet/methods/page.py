"""PAGE: clients choose how they train, the server chooses how much each of them counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from motet.client import Batch, Data
from motet.core import (
    Client,
    Count,
    Method,
    MethodUnfit,
    NoReply,
    NotNegative,
    Positive,
    Rate,
    Share,
    Talk,
    TenthRate,
    Tree,
    Turn,
    collect,
    is_verb,
    verb,
)
from motet.methods.fedavg import FedAvg, LocalSGD
from motet.parts import games, step_lengths
from motet.parts.agents import AgentSettings, AgentSpec
from motet.parts.follower import Follower, Reward, full, unfit
from motet.parts.game_around import GameAround
from motet.parts.players import WITH_NETWORKS, PlayerName, unused_by
from motet.parts.unused_settings import refuse_unused
from motet.vec import Vec, stack

_AGENT = AgentSettings(
    gamma=0.0, warm_up=0, initial_action=0.9, noise_rate=1.0, noise_decay=200, normalise_rewards=True
)


class PAGE(LocalSGD):
    """PAGE: clients choose how they train, the server chooses how much each of them counts.

    Chen et al. 2024, "PAGE: Equilibrate Personalization and Generalization in Federated Learning", sections
    4.1 to 4.4, Algorithms 1 and 2. Clients lead the game with epochs alpha_i and learning rate eta_i. The server
    follows with weights p_i, W(t+1) = sum p_i w_i. Each player has an agent (DDPG, parts/agents.py):

              state                                       action         reward
    client    accuracy of its last w_i, validation set    eta, alpha     1 / f_i(w_i), validation set
    server    accuracy of every w_i, proxy set            p_1 … p_N      1 / loss of W(t+1), proxy set

    A client's model is w_i as its training left it. A client without validation examples takes its training
    examples.

    Differs from the paper, by default (to have it as the paper reads: candidates 1, floor 0, eps 1e-5 and, in
    agent, initial_action 0, normalise_rewards false, warm_up 1 or 36, gamma 0.99, noise_rate 0.01, noise_decay 500;
    as in its authors' code: experiments/page/published.py, where private.py and deadlines.py are too):
    - The server compares several candidates of p before it chooses one (`candidates`, parts/follower.py), and no
      client has less than a quarter of another client's weight (`floor`).
    - The agents of clients start near the upper ends of their ranges, where methods without agents train, and not
      with random rounds (`initial_action`); their noise changes from round to round (`noise_rate`).
    - Agents learn from the reward of one round (`gamma` 0), and from normalised rewards (`normalise_rewards`).
    - The server's reward is how W(t+1) does on the proxy set, as in the authors' code. The paper's reward
      1 / sum p_i f_i(w_i) (`reward = "paper"`) is largest with all weight on the client of the lowest loss.
    - `client_mix` also rewards a client for the next model that it receives. `server_mix` also rewards the server
      for what clients earn in the round after its choice, which is the first round that its choice can change.
    - Clients may be absent: the server's agent has a seat for each client, and absent clients have no weight.
    - The server takes the mean itself, so a guard's robust mean has no effect.

    Beyond the paper, off by default: the server may go further than to the mean, W + s (sum p_i w_i - W) with s up to
    `step_max`; simpler players may take the agents' place (`player`, parts/players.py); and the game may go around
    another method's training, say method=feddyn+page (parts/game_around.py).
    """

    lr_min: TenthRate = 0.03  # smallest learning rate that a client can choose (eta); auto: a tenth of lr_max
    lr_max: Rate = 0.3  # largest learning rate that a client can choose; auto: safe for network and data
    epochs_min: Count = 1  # smallest number of local epochs that a client can choose (alpha)
    epochs_max: Count = 10  # largest number of local epochs that a client can choose
    reward: Literal["proxy", "paper"] = "proxy"  # the server's: from its proxy set, or from clients' losses
    eps: Positive = 0.01  # added to every loss before it is inverted to a reward
    client_scale: Positive = 1.0  # factor on the rewards of clients
    server_scale: Positive = 1.0  # factor on the reward of the server
    client_mix: NotNegative = 0.0  # weight of 1 / f_i(W), for the received model W, in a client's reward
    server_mix: NotNegative = 0.0  # weight of the clients' mean reward in the server's reward
    candidates: Count = 8  # choices of p that the server compares in a round; 1 = it takes its agent's
    stride: Positive = 0.1  # distance between two of these choices, on the scale of actions, [-1, 1]
    floor: Share = 0.25  # smallest weight of a client, as a share of the largest; 1 = all weights are equal
    step_max: Annotated[float, ">= 1"] = 1.0  # largest length s of the server's step; 1 = W(t+1) is the mean
    step_rule: Literal["search", "fedexp"] = "search"  # s: by the reward of several, or by how clients differ
    player: PlayerName = (
        "ddpg"  # who chooses eta and alpha at clients (parts/players.py), and with networks p too
    )
    lr_scale: Literal["linear", "log"] = "linear"  # of eta between lr_min and lr_max
    proxy_rows: Annotated[int, ">= 0"] = 500  # proxy examples on which each client's model is scored; 0 = all
    max_clients: Annotated[int, ">= 0"] = 0  # seats of the server's agent; 0 = twice the clients at the start
    agent: AgentSettings = _AGENT  # the agents of the server and of the clients (DDPG)

    def check(self) -> None:
        super().check()
        refuse_unused(self, self.unused())

    def unused(self) -> dict[str, str]:
        """Settings that have no effect, given the others, and why."""
        found = {}
        if self.candidates == 1:
            found["stride"] = "the server compares no candidates"
        if self.step_max == 1:
            found["step_rule"] = "the server takes the mean, method.step_max is 1"
        if self.agent.normalise_rewards:
            sides = [f"{side}_scale" for side in ("client", "server") if not getattr(self, f"{side}_mix")]
            found |= dict.fromkeys(sides, "normalised rewards have no unit; *_mix is what biases them")
        return found | unused_by(self.player)

    @classmethod
    def around(cls, base: type[Method]) -> type[Method]:
        """The same game, in which clients choose rate and epochs of another method's training."""
        verbs = {name for name in dir(base) if is_verb(getattr(base, name))}
        if not issubclass(base, FedAvg) or verbs != {"train"}:
            raise MethodUnfit(
                f"{base.__name__}: the game needs clients that train as FedAvg's do and do nothing else, with a rate "
                "and epochs that they can choose.\nhint: method=fedavg+page, fedprox+page, scaffold+page or feddyn+page"
            )
        return GameAround.made(cls, base)

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        if wrong := unfit(turn.proxy, self.task.statistics):
            raise MethodUnfit(wrong)
        many = self.max_clients or 2 * len(turn.clients)
        me = self.server(many).initial(turn.seed)
        rest = {"now": torch.zeros(many), "seats": {}, "metrics": {}, "step": torch.ones(2)}
        return me | {"w": self.task.w0} | rest

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        # collect, not average: the server answers each client's model with a weight of its own.
        replies = yield collect(self.train, turn.cohort, send=state["w"])
        if not replies:
            raise NoReply(f"page, round {turn.number + 1}: nobody answered; hint: is the cohort empty?")
        return self.follow(state, turn, replies)

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
        return found["w"]

    def merged(self, state: Tree, turn: Turn, found: Tree, p: Tensor) -> Vec:
        return games.weighted_mean(found["w"], p)

    def carried(self, state: Tree, turn: Turn, found: Tree, p: Tensor, w: Vec) -> Tree:
        """What the server carries on besides the game's own."""
        return {}

    def stepped(self, w: Vec, mean: Vec, s: Tensor) -> Vec:
        return mean if self.step_max == 1 else step_lengths.stepped(w, mean, s)

    def step(self, state: Tree, turn: Turn, found: Tree, p: Tensor, reward: Reward) -> Tensor:
        """The length of this round's step, and what it will count in the next round: (2,)."""
        if self.step_max == 1:
            return state["step"]
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
        return {"w": w, "r": r, "metrics": metrics}

    def server(self, many: int) -> Follower:
        player = self.player if self.player in WITH_NETWORKS else "constant"
        spec = self.agent.sized(
            many, many, sigma=0.0, initial_action=0.0, player=player
        )  # it acts without noise
        # where all weights are equal, there is nothing to compare
        return Follower(spec, 1 if self.floor == 1 else self.candidates, self.stride, self.floor)

    def global_model(self, state: Tree) -> Vec:
        return state["w"]

    def download(self, state: Tree, client: Client) -> Tree:
        return state["w"]

    def metrics(self, state: Tree) -> dict[str, float]:
        """Rewards of the server and, on average, of clients; how many clients of equal weight p amounts to; how far
        the server went, where it may go further than to the mean."""
        return {k: float(v) for k, v in state["metrics"].items()}

    # ---- a client ----

    def join(self, data: Data) -> Tree:
        return {"w": self.task.w0} | games.initial_leader(self.leader(), data.seed)

    @verb
    def train(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        f_w = self.loss_of(self.received(sent), data) if self.client_mix else torch.zeros(())
        a, keep = self.lead(keep, self.client_mix * self.worth(f_w), data.seed)
        eta, alpha = self.ranges(a, keep)
        reply, own, keep = self.trained(sent, keep, data, eta, alpha)
        f, accuracy = games.local_loss_and_accuracy(self.task, own, data)
        keep = keep | {"w": own, "r": self.client_scale * self.worth(f), "now": accuracy[None]}
        return reply | {"f": f}, keep

    def received(self, sent: Tree) -> Vec:
        return sent

    def loss_of(self, w: Vec, data: Data) -> Tensor:
        return games.local_loss_and_accuracy(self.task, w, data)[0]

    def trained(self, w: Tree, keep: Tree, data: Data, eta: Tensor, alpha: Tensor) -> tuple[Tree, Vec, Tree]:
        """What leaves, the client's own model w_i, and what it keeps."""
        own = self.descend(self.task.loss, w, data, lr=eta, epochs=alpha)
        return {"w": own}, own, keep

    def lead(self, keep: Tree, bonus: Tensor, seed: Tensor) -> tuple[Tensor, Tree]:
        """The client's action, and what it keeps: its agent first learns what the last action led to."""
        return games.lead(keep, bonus, seed, self.leader())

    def leader(self) -> AgentSpec:
        return self.agent.sized(states=1, actions=2, player=self.player)

    def ranges(self, a: Tensor, keep: Tree) -> tuple[Tensor, Tensor]:
        """eta and alpha: an action in [-1, 1]^2 onto lr_min … lr_max and epochs_min … epochs_max."""
        scale = games.rescale_log if self.lr_scale == "log" else games.rescale
        eta = scale(a[0], self.lr_min, self.lr_max)
        return eta, games.rescale(a[1], self.epochs_min, self.epochs_max).round().long()

    def personal(self, w: Vec, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        own = keep["w"].where(keep["agent"]["acted"] > 0, w)  # who has not trained yet has the global model
        return partial(self.task.predict, own)

    def trained_model(self, w: Vec, reply: Tree, keep: Tree, data: Data) -> Callable[[Tensor], Tensor]:
        return partial(self.task.predict, keep["w"])

    # ---- both ----

    def worth(self, loss: Tensor) -> Tensor:
        return 1 / (self.eps + loss.clamp(min=0))  # a loss of one's own may be below 0
