"""Training one run: from its first round to its last, checkpoint by checkpoint.

Every decision (best round, stopping) sees validation examples only. A kill at any moment loses at most
what was done since the last checkpoint; going on from there gives the same bits.
Knows rounds, checkpoints and choices. Does not know how results are shown.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from motet.client import metrics_of, seed_of
from motet.client.task import better
from motet.core import Client, Engine, Part, Tree, Turn
from motet.engines.client_state import ClientStates
from motet.engines.driver import play, start, training
from motet.engines.loop import Loop, rate_hint
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.hostile import Hostile
from motet.runs.build import Resolved, attackers_of, cohort_size, mean_of
from motet.runs.divergence import Diverged, diverged, mean_loss
from motet.runs.store import Store
from motet.wire import pack, unpack

_PROGRESS = 1e-3  # smallest relative fall of a loss that patience counts as progress


class Observer(Protocol):
    """What a run calls while it trains: progress bars, reports, a user's callback."""

    def on_start(self, trainer: Trainer) -> None:
        """Before the first round, or before the next one of a run that is continued."""
        return

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        """After every round."""
        return

    def should_stop(self) -> bool:
        """Asked before every round: whether to stop here, with all rounds saved."""
        return False


@dataclass
class Best:
    """The round to report, as things stand."""

    round: int
    score: float
    state: Tree
    loss: float = math.inf  # mean validation loss: of two rounds with the same score, the lower one is better


class Trainer:
    """Trains one run. `remote` is an engine whose clients are elsewhere, with their data."""

    def __init__(self, resolved: Resolved, store: Store, remote: Loop | None = None) -> None:
        self.recipe, self.store = resolved.recipe, store
        self.federated, self.task, self.method = resolved.federated, resolved.task, resolved.method
        self.choice, self.pooled = resolved.choice, resolved.pooled
        recipe, e = self.recipe, self.recipe.engine
        self.keeps = ClientStates(store.db, on_disk=e.keep == "disk")
        clients = remote or self.choice.build(resolved.training.clients_data, self.keeps, e.workers)
        clients.keeps = self.keeps
        if not self.pooled:
            clients.fold = mean_of(recipe.guard)
        attackers, how = attackers_of(recipe, clients.clients), recipe.guard.attack
        self.engine = Counted(Hostile(clients, attackers, how) if attackers and how != "none" else clients)
        everyone = self.federated.clients_data
        self.evaluator = self.choice.build(everyone, workers=e.workers) if self.pooled else clients
        self.proxy = self.federated.proxy and self.federated.proxy.take()
        self.state: Tree = ()
        self.number = -2  # the last round that ended; -1 is the start
        self.best: Best | None = None
        self.peaks: dict[str, float] = {}  # the highest validation scores so far, by side
        self.last_improvement = -1  # the last round with a new one
        self.latest: dict[str, float] = {}  # mean validation scores, by side
        self.losses: dict[str, float] = {}  # mean validation losses, by side
        self.refusals: list[str] = []  # replies that were left out since the run started or went on
        self.next_save = 0.0

    # ---- rounds ----

    def run(self, observer: Observer) -> None:
        """Train to the end, or until the observer says stop."""
        self.load()
        observer.on_start(self)
        if self.number == -2:
            self.state, self.number = start(self.engine, self.method, self.turn(-1)), -1
            self.engine.take()
            self.write_events(())
            self.save()
        while not self.over() and not observer.should_stop():
            began = time.perf_counter()
            before = self.state
            self.state = play(self.engine, self.method, before, self.turn(self.number + 1))
            self.number += 1
            t, ended = self.recipe.train, self.number + 1
            if ended % t.evaluate == 0 or ended == t.rounds:
                self.evaluate()
                if t.after_training:
                    self.score_after_training(before)
            seconds = time.perf_counter() - began
            self.store.ended(self.number, seconds, self.engine.take())
            self.store.add_metrics(self.number, self.method.metrics(self.state))
            self.write_events(before)
            if time.monotonic() >= self.next_save:
                self.save()
            observer.on_round(self, seconds)
        self.save()

    def over(self) -> bool:
        return self.number + 1 >= self.recipe.train.rounds or self.stuck()

    def stuck(self) -> bool:
        """Whether no side that counts has improved on validation examples for as long as patience lasts."""
        patience = self.recipe.train.patience
        return bool(self.peaks) and patience > 0 and self.number - self.last_improvement >= patience

    def turn(self, number: int) -> Turn:
        seed = seed_of(self.recipe.seed, "turn", number)
        return Turn(number, self.cohort(number), self.engine.clients, seed, self.proxy)

    def cohort(self, number: int) -> list[str]:
        """Who takes part: a draw that depends on seed, round and name alone."""
        clients, asked = list(self.engine.clients), self.recipe.train.cohort
        many = cohort_size(asked, len(clients))
        if many == len(clients):
            return clients
        return sorted(sorted(clients, key=lambda c: seed_of(self.recipe.seed, "cohort", number, c))[:many])

    def write_events(self, before: Tree) -> None:
        """Log replies that were left out of the round, and the method's own line."""
        self.write_refusals(self.engine.refused)
        if said := self.method.log(before, self.state):
            self.store.event("note", f"round {self.number}: {said}")

    def write_refusals(self, refused: list[tuple[Client, str, int]]) -> None:
        """Every reply that an engine left out is an event of the run."""
        for client, verb, number in refused:
            text = f"round {number}: the reply of client {client} to {verb} is not finite; left out"
            self.store.event("refused", text)
            self.refusals.append(text)
        refused.clear()

    # ---- choosing ----

    def evaluate(self) -> None:
        """Score everyone on validation examples, and see whether this is the best round so far."""
        self.latest = self.score(self.evaluator, self.state, self.turn(self.number), "val")
        by, sign = self.recipe.train.by, better(self.task.kind)
        scores = {k: v * sign for k, v in self.latest.items() if k == by or by == "both"}
        if not scores:
            return
        score = sum(scores.values()) / len(scores)
        loss = sum(self.losses[k] for k in scores) / len(scores)
        b = self.best
        better_now = b is None or (score, -loss) > (b.score, -b.loss)
        # While the score stays the same, a falling loss is progress too; PAGE's equilibrium goes by scores alone.
        falling = by != "both" and b is not None and score == b.score and loss < (1 - _PROGRESS) * b.loss
        if falling or any(v > self.peaks.get(k, -math.inf) for k, v in scores.items()):
            self.last_improvement = self.number
        self.peaks = {k: max(v, self.peaks.get(k, v)) for k, v in scores.items()}
        if better_now:
            self.best = Best(self.number, score, self.state, loss)
            self.keeps.mark_best()

    def score_after_training(self, before: Tree) -> None:
        """Score clients' models right after local training. Test scores are kept only for the round that
        would be reported now; nothing is chosen by them."""
        turn = self.turn(self.number)
        asks = training(self.method, before, turn)
        if not asks or self.pooled:
            return
        clients, sums = self.engine.evaluate_trained(self.method, asks, turn)
        self.latest |= self.write(clients, sums["val"], turn.number, "val", "after_training")
        if self.reported().round == self.number:
            self.store.forget_scores("test", "after_training")
            self.write(clients, sums["test"], turn.number, "test", "after_training")

    def score(
        self, engine: Engine, state: Tree, turn: Turn, part: Part, sides: dict[str, str] | None = None
    ) -> dict[str, float]:
        """Write down everyone's scores under `sides` (all of them by default); return their means."""
        clients, sums = engine.evaluate(self.method, state, turn, part)
        means: dict[str, float] = {}
        if part == "val":
            self.check_divergence(clients, sums, turn.number)
            self.losses = {side: mean_loss(sums[side]) for side in sums}
        for side, label in (sides or {s: s for s in sums}).items():
            if side in sums:
                means |= self.write(clients, sums[side], turn.number, part, label)
        return means

    def check_divergence(self, clients: list[str], sums: Tree, number: int) -> None:
        """End the run if a model has diverged. A simulated attack may ruin models, which is what it is to show."""
        if self.recipe.guard.attack != "none":
            return
        for side in sums:
            if why := diverged(self.task.kind, self.task.scale, clients, sums[side]):
                own = "" if side == "personal" else f" ({side} model)"
                raise Diverged(f"diverged in round {number}: {why}{own}{rate_hint(self.method)}")

    def write(self, clients: list[str], sums: Tree, number: int, part: Part, label: str) -> dict[str, float]:
        """Write down scores of the clients that have examples of this part; return their mean by label."""
        n = sums["n"].long().numpy()
        some = np.flatnonzero(n)
        if not len(some):
            return {}
        scores = {k: v[some] for k, v in metrics_of(self.task.kind, sums).items()}
        names = [clients[i] for i in some]
        self.store.scored(number, part, label, names, n[some].tolist(), scores)
        return {label: float(next(iter(scores.values())).mean())}

    def reported(self) -> Best:
        """The round whose models count."""
        if self.recipe.train.report == "best" and self.best is not None:
            return self.best
        return Best(self.number, 0.0, self.state)

    # ---- checkpoints ----

    def save(self) -> None:
        """All of the rounds so far, in one transaction."""
        began, b = time.monotonic(), self.best

        def state(number: int) -> bytes:
            return pack(self.state if number == self.number or b is None else b.state)

        best, score = (b.round, b.score) if b else (None, None)
        self.store.checkpoint(self.number, best, score, state)
        lowest = b.loss if b and math.isfinite(b.loss) else None
        self.store.set_facts(peaks=self.peaks, last_improvement=self.last_improvement, best_loss=lowest)
        self.keeps.write(self.number)
        self.store.commit()
        now = time.monotonic()
        # A slow checkpoint is written less often: it takes at most a thirtieth of the time.
        pause = self.recipe.save.checkpoint
        self.next_save = now + max(pause, 30 * (now - began) if pause else 0)

    def load(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        if (saved := self.store.saved()) is None:
            return
        self.number, best, score = saved
        self.state = unpack(self.store.state(self.number))
        if best is not None and score is not None:
            facts = self.store.facts()  # runs before 0.1 have no `peaks`, and `risen`, or neither
            lowest = facts.get(
                "best_loss"
            )  # without one, a round with the same score does not replace the best
            state = unpack(self.store.state(best))
            self.best = Best(best, score, state, -math.inf if lowest is None else lowest)
            self.keeps.best = best
            self.peaks = facts.get("peaks", {self.recipe.train.by: score})
            self.last_improvement = facts.get("last_improvement", facts.get("risen", best))
        self.store.rewind(self.number)
        self.keeps.rewind(self.number)

    def give_up_round(self) -> None:
        """Forget what the round that was interrupted has done so far, and save the rounds before it."""
        self.engine.take()
        self.engine.refused.clear()
        self.keeps.rewind(self.number)
        if self.number >= -1:
            self.save()
