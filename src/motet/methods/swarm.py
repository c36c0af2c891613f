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
- A particle may try several places in a message and take the best; lists of settings make swarms side by side,
  each as it would be alone. Where alpha has been halved to 0 nothing can move again, and nobody is asked.
As in the authors' code: failures add up and a success does not forget them, v is kept where a step is rejected.
PSO's usual inertia 0.73 and pulls 1.5 are alpha 3.72, w1 0.2, w2 0.4, adapt false.

A particle whose loss is not finite at some client does not move. A client with no finite loss at all is left out.
Noise is Laplace's, of scale clip / (n epsilon): epsilon is that of one loss, and an epoch tells particles * tries + 1.
It is arithmetic as all draws are, so a server that knows the seed could take it off: a study, no protection.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from motet.client import Data
from motet.core import (
    Ask,
    Client,
    Count,
    Method,
    MethodUnfit,
    NotNegative,
    Positive,
    Share,
    Talk,
    Tree,
    Turn,
    average,
    verb,
)  # fmt: skip
from motet.parts import swarms, trials
from motet.parts.swarms import Dice, SwarmRule
from motet.vec import Vec

Losses = Generator[Any, Any, tuple[Any, int]]


class Swarm(Method):
    loss: str = "task"  # task (its own), one_vs_all, published, or module:function(scores, y) -> number
    particles: Count = 20  # in a swarm (S); one_vs_all has a swarm for each class
    swarms: Count = 1  # of each setting, side by side in each message, from other draws; the best one counts
    tries: Count = (
        1  # places a particle tries in each message, to take the best; more where messages are slow
    )
    stretch: Count = 10  # epochs in a round
    rule: Literal["fsi", "pso"] = "fsi"  # mutation as in the paper, or a pull to each particle's own best
    w1: Share | tuple[Share, ...] = 0.0  # share of the speed before; lists are settings to go side by side
    w2: Share | tuple[Share, ...] = 0.3  # share of the pull to the best particle; 1 - w1 - w2 is mutation's
    alpha: Positive | tuple[Positive, ...] = 0.1  # first length of a step
    adapt: bool | tuple[bool, ...] = (
        True  # alpha doubles when the best loss falls, and halves after `patience` failures
    )
    patience: Count = 6  # failures, in epochs
    consecutive: bool = False  # whether a success forgets the failures before it
    alpha_cap: NotNegative = 0.0  # largest alpha; 0 = any
    first: Literal["net", "unit"] = "net"  # particles begin around the network's weights, or in [0, 1)
    spread: NotNegative = 0.1  # first "net" only: how far around
    epsilon: NotNegative = 0.0  # of the noise on one loss; 0 = none
    clip: NotNegative = 0.0  # largest loss of an example; 0 = any; noise wants it
    trail: Annotated[int, ">= 0"] = 0  # epochs from one record of the best particles to the next; 0 = none

    # ---- the server ----

    def start(self, turn: Turn) -> Tree | Talk:
        self.check()
        dice = swarms.Dice.of(turn.seed, self.many // self.settings)
        s = swarms.born(turn.seed, self.scattered(dice), dice.places(), self.each(self.alpha), self.moves)
        loss, lost = yield from self.ask(s["theta"], 0, turn)
        return self.with_best(s | {"loss": torch.from_numpy(loss), "excluded": torch.tensor(lost)})

    def round(self, s: Tree, turn: Turn) -> Tree | Talk:
        flock, last = swarms.Flock(s, self.moves, self.stretch), self.particles * self.tries
        for _ in range(self.stretch):
            tried = flock.move()  # and the best particles, last
            new, lost = yield from self.ask(torch.from_numpy(tried), flock.epoch, turn)
            if not self.epsilon and flock.others_answered(new[:, last]):
                everyone = np.concatenate([tried[:, :last], flock.theta], 1)
                new, lost = yield from self.ask(torch.from_numpy(everyone), flock.epoch, turn)
                flock.relearn(new[:, last:])
            flock.excluded += lost
            flock.learn(new[:, :last])
        if flock.others and len(flock.resting):
            new, _ = yield from self.ask(s["theta"][flock.resting], flock.epoch, turn)
            flock.relearn_resting(new)
        return self.with_best(flock.state())

    def ask(self, theta: Tensor, epoch: int, turn: Turn) -> Losses:
        """Mean losses (swarms, particles), infinite where some client could not tell, and how many those are."""
        mean = yield self.question(theta, epoch, turn.cohort)
        loss, lost = mean.numpy()
        many = int(np.count_nonzero(lost))
        return (np.where(lost > 0, np.inf, loss) if many else loss), many

    def question(self, theta: Tensor, epoch: int, to: Sequence[Client]) -> Ask:
        letter = {"theta": theta} | ({"epoch": torch.tensor(epoch)} if self.epsilon else {})
        return average(self.call if ":" in self.loss else self.tell, to, send=letter)

    def with_best(self, s: Tree) -> Tree:
        best = swarms.leaders(s)
        if self.trail and int(s["epoch"]) % self.trail == 0:
            now = torch.cat([best[:, 0], s["loss"].amin(1, keepdim=True)], 1)[None]
            s = s | {"trail": torch.cat([s["trail"], now]) if "trail" in s else now}
        if not self.per_class:
            best = best[s["loss"].amin(1).argmin()][None]
        w = trials.weights(self.task, best, self.per_class)
        return s | {"best": Vec({k: v[0].to(self.task.w0[k].dtype) for k, v in w.items()})}

    def metrics(self, s: Tree) -> dict[str, float]:
        best = s["loss"].amin(1)  # of each swarm; classes' swarms make one model together
        return {
            "loss": float(best.mean() if self.per_class else best.min()),
            "alpha": float(s["alpha"].median()),
        }

    def summary(self, s: Tree) -> dict[str, Any]:
        """Of each swarm: how good its best particle is, how long its steps are and, by records, the way there."""
        found = {"epochs": int(s["epoch"]), "loss": s["loss"].amin(1).tolist(), "alpha": s["alpha"].tolist()}
        return found | ({"trail": s["trail"].tolist(), "every": self.trail} if self.trail else {})

    def log(self, before: Tree, after: Tree) -> str:
        lost = int(after["excluded"]) - int(before["excluded"] if before else 0)
        return f"{lost} losses were not finite at some client; those particles stayed" if lost else ""

    def global_model(self, s: Tree) -> Vec:
        best: Vec = s["best"]
        return best

    def download(self, s: Tree, client: str) -> Tree:
        return s["best"]

    # ---- clients ----

    def join(self, data: Data) -> Tree:
        return trials.root(self.task, data) if self.squares else ()

    @verb
    def tell(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        theta, known = sent["theta"], isinstance(keep, Tensor)
        if known and not self.epsilon:
            return trials.told_from_root(keep, theta), keep
        loss = trials.from_root(keep, theta) if known else self.measured(theta, data)
        return self.leaving(loss, sent, data), keep

    def measured(self, theta: Tensor, data: Data) -> Tensor:
        return trials.losses(self.task, theta, data, self.loss, self.clip)

    @verb(solo=True)
    def call(self, sent: Tree, keep: Tree, data: Data) -> tuple[Tree, Tree]:
        loss = trials.scored(self.task, sent["theta"], data, trials.fetched(self.loss))
        return self.leaving(loss.clamp(0, self.clip) if self.clip else loss, sent, data), keep

    def leaving(self, loss: Tensor, sent: Tree, data: Data) -> Tensor:
        if self.epsilon:
            one = self.clip if ":" in self.loss else self.clip / data.n  # what one example can change
            loss = loss + one / self.epsilon * trials.noise(data, sent["epoch"], loss.shape)
        return trials.told(loss)

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
    def settings(self) -> int:
        """How many settings go side by side."""
        lists = [v for v in (self.w1, self.w2, self.alpha, self.adapt) if isinstance(v, list | tuple)]
        return max(map(len, lists), default=1)

    @property
    def many(self) -> int:
        return self.task.outputs if self.per_class else self.settings * self.swarms

    def each(self, value: Any) -> Any:
        """A setting's value for each swarm: those of one setting stand together."""
        return np.repeat(np.broadcast_to(value, self.settings), self.many // self.settings)

    @property
    def moves(self) -> SwarmRule:
        w1, w2 = map(self.each, (self.w1, self.w2))
        adapt = self.adapt if isinstance(self.adapt, bool) else self.each(self.adapt)
        return SwarmRule(
            self.rule, w1, w2, adapt, self.patience, self.consecutive, self.alpha_cap, self.tries
        )

    def scattered(self, dice: Dice) -> Tensor:
        at = trials.particle(self.task, self.per_class)  # (classes or 1, numbers)
        u = torch.from_numpy(dice.roll(self.particles, at.shape[1])).repeat(self.settings, 1, 1)
        return u if self.first == "unit" else at[:, None] + self.spread * (2 * u - 1)

    def check(self) -> None:
        """Refuse what cannot work, with all reasons at once."""
        if found := [why for why, is_so in (self.wrong_loss() | self.wrong_moves()).items() if is_so]:
            raise MethodUnfit("swarm: " + "\n".join(found))
        if ":" in self.loss:
            try:
                trials.fetched(self.loss)
            except (ImportError, ValueError) as e:
                raise MethodUnfit(
                    f"swarm: loss is {self.loss!r}, and {e}.\n"
                    "hint: module:function, of a module in the current folder or an installed one"
                ) from e

    def wrong_loss(self) -> dict[str, bool]:
        t, words = self.task, ("task", *trials.PER_CLASS)
        return {
            f"loss is {self.loss!r}.\nhint: {', '.join(words)} or module:function": self.loss not in words
            and ":" not in self.loss,
            f"loss {self.loss!r} is for classes and one linear layer.\nhint: net.name=logistic": self.per_class
            and not (t.kind == "classes" and trials.linear(t)),
            f"loss {self.loss!r} has a swarm for each class, and {self.settings * self.swarms} are asked for.\n"
            "hint: leave swarms at 1 and give no lists, or raise particles": self.per_class
            and self.settings * self.swarms > 1,
            "noise needs to know how large the loss of an example can be.\n"
            "hint: set method.clip, say to 5": self.epsilon > 0 and not self.clip,
            "the network has batch statistics, and they are no weights that a swarm could move.\n"
            "hint: net.norm=group": bool(t.statistics),
        }

    def wrong_moves(self) -> dict[str, bool]:
        sizes = {len(v) for v in (self.w1, self.w2, self.alpha, self.adapt) if isinstance(v, list | tuple)}
        if len(sizes) > 1 or 0 in sizes:
            return {f"lists of settings have {sorted(sizes)} values.\nhint: give all the same number": True}
        most = float(np.max(np.add(self.w1, self.w2)))
        return {
            f"w1 + w2 is {most:g}, and its rest is the share of the mutation.\n"
            "hint: let it be 1 at most": most > 1 + 1e-9,
            f"trail is {self.trail}, and rounds end every {self.stretch} epochs.\n"
            "hint: a multiple of stretch": self.trail % self.stretch > 0,
        }
