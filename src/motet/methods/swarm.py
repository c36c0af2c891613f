"""Federated Swarm Intelligence: the server moves a swarm of weights, and clients answer with losses alone.

Zeng, "Self-adaptive Federated Swarm Intelligence", Algorithms 1 and 2. A particle is a whole weight vector. In
each epoch every particle tries a step, v = alpha (w1 v + w2 R1 (gbest - theta) + (1 - w1 - w2) R2), and takes it
if the federation's mean loss falls. It is the mean over all examples, so how they are divided among clients
changes nothing, and nothing needs a gradient. The paper's regression: particles 20, alpha 100, patience 5; its
digits: loss one_vs_all, w2 0.3, alpha 0.001, patience 6; both first "unit", and all epochs with all clients.

Differs from the paper:
- Losses of accepted places are remembered, not asked for again. Each message also holds the best particle: if its
  loss is not what it was, other clients have answered (a cohort, or somebody failed), and all are asked anew.
- Any network and loss; alpha is bounded; one-vs-all trains on the stable loss ("published" is the authors' own).
- The first particles lie around the network's first weights, unless `first` is "unit".
As in the authors' code: failures add up and a success does not forget them, v is kept where a step is rejected.
PSO's usual inertia 0.73 and pulls 1.5 are alpha 3.72, w1 0.2, w2 0.4, adapt false.

A particle whose loss is not finite at some client does not move. A client with no finite loss at all is left out.
Noise is Laplace's, of scale clip / (n epsilon): epsilon is that of one loss, and each epoch tells particles + 1 of
them. It is arithmetic as all draws are, so a server that knows the seed could take it off: a study, no protection.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import torch
from torch import Tensor

from motet.core import Count, Method, NotNegative, Positive, Share, Talk, Tree, Turn, Unfit, average, verb
from motet.local import Data
from motet.parts import swarms, trials
from motet.parts.swarms import Rule
from motet.vec import Vec

Losses = Generator[Any, Any, Tensor]


class Swarm(Method):
    loss: str = "task"  # task (its own), one_vs_all, published, or module:function(scores, y) -> number
    particles: Count = 20  # in a swarm (S); one_vs_all has a swarm for each class
    swarms: Count = 1  # side by side in each message, from other draws; the best of them counts
    stretch: Count = 10  # epochs in a round
    rule: Literal["fsi", "pso"] = "fsi"  # mutation as in the paper, or a pull to each particle's own best
    w1: Share = 0.0  # share of the speed before
    w2: Share = 0.3  # share of the pull to the best particle; 1 - w1 - w2 is left for mutation
    alpha: Positive = 0.1  # first length of a step
    adapt: bool = True  # alpha doubles when the best loss falls, and halves after `patience` failures
    patience: Count = 6  # failures, in epochs
    consecutive: bool = False  # whether a success forgets the failures before it
    alpha_cap: NotNegative = 0.0  # largest alpha; 0 = any
    first: Literal["net", "unit"] = "net"  # particles begin around the network's weights, or in [0, 1)
    spread: NotNegative = 0.1  # first "net" only: how far around
    epsilon: NotNegative = 0.0  # of the noise on one loss; 0 = none
    clip: NotNegative = 0.0  # largest loss of an example; 0 = any; noise wants it

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        self.check()
        s = swarms.born(turn.seed, self.scattered(turn.seed), self.alpha, self.moves)
        s["loss"] = yield from self.ask(s, s["theta"], turn)
        return self.with_best(s)

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        for _ in range(self.stretch):
            cand, v = swarms.move(s, self.moves)
            new = yield from self.ask(s, torch.cat([cand, swarms.leaders(s)], 1), turn)
            if not self.epsilon and swarms.others_answered(s, new[:, -1]):
                both = yield from self.ask(s, torch.cat([cand, s["theta"]], 1), turn)
                new, s = both, s | {"loss": both[:, self.particles :]}
            s = swarms.moved(s, cand, v, new[:, : self.particles], self.moves)
        return self.with_best(s)

    def ask(self, s: Tree, theta: Tensor, turn: Turn) -> Losses:
        """Mean losses (swarms, particles); infinite where some client could not tell."""
        tell = self.call if ":" in self.loss else self.tell
        loss, lost = yield average(tell, turn.cohort, send={"theta": theta, "epoch": s["epoch"]})
        return torch.where(lost > 0, torch.inf, loss)

    def with_best(self, s: Tree) -> Tree:
        best = swarms.leaders(s)
        if not self.per_class:
            best = best[s["loss"].amin(1).argmin()][None]
        w = trials.weights(self.task, best, self.per_class)
        return s | {"best": Vec({k: v[0].to(self.task.w0[k].dtype) for k, v in w.items()})}

    def general(self, s: Tree) -> Vec:
        best: Vec = s["best"]
        return best

    def view(self, s: Tree, client: str) -> Tree:
        return s["best"]

    # ---- clients ----

    def join(self, data: Data) -> Tree:
        return trials.root(self.task, data) if self.squares else ()

    @verb
    def tell(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        theta, known = sent["theta"], isinstance(keep, Tensor)
        loss = trials.from_root(keep, theta) if known else self.measured(theta, data)
        return self.leaving(loss, sent, data), keep

    def measured(self, theta: Tensor, data: Data) -> Tensor:
        return trials.losses(self.task, theta, data, self.loss, self.clip)

    @verb(solo=True)
    def call(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        loss = trials.scored(self.task, sent["theta"], data, trials.fetched(self.loss))
        return self.leaving(loss.clamp(0, self.clip) if self.clip else loss, sent, data), keep

    def leaving(self, loss: Tensor, sent: Tree, data: Data) -> Tensor:
        """Losses, and 1 where one is lost; nothing finite if all are, so that the client is left out."""
        if self.epsilon:
            one = self.clip if ":" in self.loss else self.clip / data.n  # what one example can change
            loss = loss + one / self.epsilon * trials.noise(data, sent["epoch"], loss.shape)
        fine = loss.isfinite()
        loss = torch.where(fine, loss, torch.where(fine.any(), 0.0, torch.nan))
        return torch.stack([loss, (~fine).double()])

    # ---- what the settings mean ----

    @property
    def per_class(self) -> bool:
        return self.loss in trials.PER_CLASS

    @property
    def squares(self) -> bool:
        """Whether losses are squared errors of a linear network, so that the root of a Gram matrix tells them."""
        plain = self.loss == "task" and not self.clip and self.task.kind == "numbers"
        return plain and trials.linear(self.task)

    @property
    def moves(self) -> Rule:
        return Rule(self.rule, self.w1, self.w2, self.adapt, self.patience, self.consecutive, self.alpha_cap)

    def scattered(self, seed: int) -> Tensor:
        at = trials.particle(self.task, self.per_class).repeat(self.swarms, 1)  # (swarms, numbers)
        u = swarms.scattered(seed, (len(at), self.particles, at.shape[1]))
        return u if self.first == "unit" else at[:, None] + self.spread * (2 * u - 1)

    def check(self) -> None:
        """Refuse what cannot work, with all reasons at once."""
        t, words = self.task, ("task", *trials.PER_CLASS)
        wrong = {
            f"loss is {self.loss!r}.\nhint: {', '.join(words)} or module:function": self.loss not in words
            and ":" not in self.loss,
            f"loss {self.loss!r} is for classes and one linear layer.\nhint: net.name=logistic": self.per_class
            and not (t.kind == "classes" and trials.linear(t)),
            f"loss {self.loss!r} has a swarm for each class, and swarms is {self.swarms}.\n"
            "hint: leave it at 1, or raise particles": self.per_class and self.swarms > 1,
            f"w1 + w2 is {self.w1 + self.w2:g}, and its rest is the share of the mutation.\n"
            "hint: let it be 1 at most": self.w1 + self.w2 > 1 + 1e-9,
            "noise needs to know how large the loss of an example can be.\n"
            "hint: set method.clip, say to 5": self.epsilon > 0 and not self.clip,
            "the network has batch statistics, and they are no weights that a swarm could move.\n"
            "hint: net.norm=group": bool(t.statistics),
        }
        if found := [why for why, is_so in wrong.items() if is_so]:
            raise Unfit("swarm: " + "\n".join(found))
        if ":" in self.loss:
            try:
                trials.fetched(self.loss)
            except (ImportError, ValueError) as e:
                raise Unfit(
                    f"swarm: loss is {self.loss!r}, and {e}.\n"
                    "hint: module:function, of a module in the current folder or an installed one"
                ) from e
