"""Training one run: from its first round to its last, checkpoint by checkpoint.

Every decision (best round, stopping) sees validation examples only, and goes by the run's metric. A kill at any
moment loses at most what was done since the last checkpoint; going on from there gives the same bits.
Knows rounds, checkpoints and choices. Does not know how results are shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from motet.client import seed_of
from motet.core import SIDES, Client, Engine, Part, Tree, Turn
from motet.engines.client_state import ClientStates
from motet.engines.driver import own_failures, play, start, training, unchanged
from motet.engines.evaluate import See
from motet.engines.loop import AllRefused, Loop, no_loss_at_start, rate_hint
from motet.engines.meter import Alike, Meter, by_client, in_training, totals
from motet.engines.wrappers.counted import Counted
from motet.engines.wrappers.hostile import Hostile
from motet.guard.pairs.chain import Chain
from motet.guard.pairs.client_noise import ClientNoise
from motet.runs.build import Resolved, attackers_of, chain_of, cohort_of, cohort_size, mean_of, scored_of
from motet.runs.choose_metric import metric_facts
from motet.runs.client_columns import names_in
from motet.runs.client_privacy import ClientLevelBudget
from motet.runs.cluster import write_losses
from motet.runs.divergence import Diverged, diverged
from motet.runs.keep_place import keeps_on_disk
from motet.runs.mean_scores import has_score, mean_score
from motet.runs.rates import open_rates
from motet.runs.store import METRICS, Store, metric_of
from motet.text import function_name, round_name
from motet.wire import pack, unpack

_IDLE = 3  # rounds without a question, after which a run with patience ends
_PROGRESS = 1e-3  # smallest relative fall of a loss that patience counts as progress
_HALVINGS = 6  # times that a run halves its rates, at most
_SHARES = ("accuracy", "balanced", "auc", "f1", "cindex")  # with the standard error of a share of rows


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
    # how often rates had been halved: models that train while they are scored need the same rates
    halved: int = 0


class Trainer:
    """Trains one run. `remote` is an engine whose clients are elsewhere, with their data."""

    def __init__(self, resolved: Resolved, store: Store, remote: Loop | None = None) -> None:
        self.recipe, self.store = resolved.recipe, store
        self.federated, self.task, self.method = resolved.federated, resolved.task, resolved.method
        self.choice, self.pooled, self.budget = resolved.choice, resolved.pooled, resolved.budget
        recipe, e = self.recipe, self.recipe.engine
        on_disk = keeps_on_disk(e.keep, self.method, resolved.training.clients_data, recipe.guard.compresses)
        self.keeps = ClientStates(store.db, on_disk=on_disk)
        clients = remote or self.choice.build(resolved.training.clients_data, self.keeps, e.workers)
        clients.keeps = self.keeps
        self.client_noise: ClientNoise | None = None
        self.set_guards(clients)
        who, how = resolved.attackers, recipe.guard.attack
        who = attackers_of(recipe, clients.clients) if who is None else who
        attacked = Hostile(clients, who, how) if who and how != "none" else clients
        # an engine that sends letters counts their bytes itself
        self.counted = Counted(attacked, clients.left) if clients.meter is None else None
        self.engine: Engine = self.counted or attacked
        self.meter = self.counted.meter if self.counted else clients.meter or Meter()
        everyone = self.federated.clients_data
        self.evaluator: Engine = self.engine
        if self.pooled:
            self.evaluator = apart = self.choice.build(everyone, workers=e.workers)
            apart.scored = scored_of(recipe, apart.clients)
        elif remote is None:
            clients.scored = scored_of(recipe, clients.clients)
        self.proxy = self.federated.proxy and self.federated.proxy.take()
        facts = metric_facts(recipe) | store.facts()
        self.metric, self.better = str(facts["metric"]), int(facts["better"])
        self.metric_name = metric_of(facts)
        self.round_by = str(facts.get("round_by", self.metric))  # chooses the round: the metric, or the loss
        self.state: Tree = ()
        self.number = -2  # the last round that ended; -1 is the start
        self.best: Best | None = None
        self.peaks: dict[str, float] = {}  # the highest validation scores so far, by side
        self.last_improvement = -1  # the last round with a new one
        self.latest: dict[str, float] = {}  # mean validation scores, by side
        self.losses: dict[str, float] = {}  # mean validation losses, by side
        self.refusals: list[str] = []  # replies that were left out since the run started or went on
        self.top, self.val_rows = -math.inf, 0  # the highest mean score so far, and the rows it is from
        self.next_save, self.idle = 0.0, 0  # idle: rounds since somebody was asked something
        asked = store.facts().get("asked", {}).get("method", {})
        chosen = open_rates(type(self.method), asked) if remote is None else {}
        self.rates = {k: float(getattr(self.method, k)) for k in chosen if recipe.guard.attack == "none"}
        self.halvings: list[dict[str, Any]] = []  # at whom training diverged, and the rates from then on
        self.halved = 0  # how often the rates that `method` has were halved
        self.said: list[str] = []  # of halvings since the run started or went on, each in a line
        self.lost = 0.0  # seconds of rounds that are done again
        self.sound: tuple[int, Tree] = -2, ()  # the last round whose models were all sound, and its state
        self.sound_clip = self.client_noise.clip if self.client_noise else 0.0  # after that round
        self.spent: dict[str, int] = {}  # private rounds of each client, where some were done again

    def set_guards(self, clients: Loop) -> None:
        guard = self.recipe.guard
        self.left_out = clients.left_out  # who makes no mean, or is not scored, in words
        if not self.pooled:
            clients.fold, clients.chain = mean_of(guard), chain_of(guard)
        if isinstance(self.budget, ClientLevelBudget):
            self.client_noise = clients.private = self.budget.guard(guard)
            clients.chain = Chain((self.client_noise,))

    # ---- rounds ----

    def run(self, observer: Observer) -> None:
        """Train to the end, or until the observer says stop."""
        self.load()
        observer.on_start(self)
        if self.number == -2:
            self.begin()
            self.write_traffic(-1)
            self.write_events(())
            self.save()
        while not self.over() and not observer.should_stop():
            began = time.perf_counter()
            before = self.play_round()
            seconds, self.lost = time.perf_counter() - began + self.lost, 0.0
            trained = self.write_traffic(self.number)
            self.store.ended(self.number, seconds, *trained)
            self.idle = 0 if trained[0] else self.idle + 1
            m, states = self.method, {"before": before, "state": self.state}
            with own_failures(self.number), unchanged(m, self.number, m.metrics, m.log, **states):
                self.store.add_metrics(self.number, m.metrics(self.state))
                self.write_spent()
                self.write_events(before)
            if time.monotonic() >= self.next_save:
                self.save()
            observer.on_round(self, seconds)
        self.save(spent=True)

    def begin(self) -> None:
        """What comes before the first round."""
        try:
            self.state, self.number = start(self.engine, self.method, self.turn(-1)), -1
        except AllRefused as e:
            self.back_off(e)
            self.begin()
        self.mark_sound()

    def play_round(self) -> Tree:
        """Play the next round, and score it if it is its turn; return the state before it. Where training diverges,
        rates that motet chose are halved, and the round to play is that after the last sound one."""
        number, before, turn = self.number, self.state, self.turn(self.number + 1)
        try:
            if turn.cohort or not self.budget:
                self.state = play(self.engine, self.method, before, turn)
            else:  # nobody of its draw has any budget left
                self.engine.begin(self.method, turn)
            self.number += 1
            t, ended = self.recipe.train, self.number + 1
            if ended % t.evaluate == 0 or ended == t.rounds:
                with own_failures(self.number):
                    self.evaluate()
                    self.mark_sound()
                    if t.after_training:
                        self.score_after_training(before)
        except (AllRefused, Diverged) as e:
            self.number, self.state = number, before
            self.back_off(e, turn.cohort)
            return self.play_round()
        return before

    def write_traffic(self, number: int) -> tuple[int, int, int]:
        """Write down what crossed the wire since the last call; return how many clients were trained, and the bytes up
        and down that it took."""
        asked, alike = self.meter.take(), self.meter.take_alike()
        self.store.asked(number, asked)
        self.store.crossed(number, by_client(asked))
        for group in alike:
            self.store.asked_alike(number, group.what, group.learn, group.up, group.down, group.clients)
        return totals(by_client(in_training(asked)), alike)

    def write_spent(self) -> None:
        """Write down the private steps of the round that ended."""
        if self.budget:
            self.store.spent(self.number, self.budget.spent_in(self.cohort(self.number)))
            self.spent = self.store.private_rounds() if self.halved else {}

    def over(self) -> bool:
        if self.number + 1 >= self.recipe.train.rounds or self.stuck() or self.finished():
            return True
        later = range(self.number + 1, self.recipe.train.rounds)
        return self.budget is not None and not any(map(self.cohort, later))  # all budgets are spent

    def finished(self) -> bool:
        """Whether nothing is left to do: with patience, a few rounds in which everybody was there and nobody was
        asked anything (stacking, once all models are published and stacked)."""
        t = self.recipe.train
        return bool(t.patience) and cohort_size(t.cohort, 2) == 2 and self.idle >= _IDLE

    def stuck(self) -> bool:
        """Whether no side that counts has improved on validation examples for as long as patience lasts."""
        patience = self.recipe.train.patience
        return bool(self.peaks) and patience > 0 and self.number - self.last_improvement >= patience

    def turn(self, number: int) -> Turn:
        # the same noise twice, on other gradients, would hide neither
        again = (self.halved,) if self.budget and self.halved else ()
        seed = seed_of(self.recipe.seed, "turn", number, *again)
        return Turn(number, self.cohort(number), self.engine.clients, seed, self.proxy)

    def cohort(self, number: int) -> Sequence[str]:
        drawn = cohort_of(self.recipe, self.engine.clients, number, self.halved)
        if not self.budget:
            return drawn
        allowed = self.budget.allowed(drawn, number)
        return self.budget.left(allowed, self.spent, self.played) if self.halved else allowed

    @property
    def played(self) -> int:
        """Rounds that ended or were given up to be done again."""
        return self.number + 1 + sum(int(h["rounds"]) for h in self.halvings)

    def write_events(self, before: Tree) -> None:
        """Log replies that were left out of the round, processes that were lost, and the method's own line."""
        self.write_refusals(self.engine.refused)
        write_losses(self.choice.crew, self.store)
        for text in self.left_out:
            self.store.event("left out", text)
        self.left_out.clear()
        if said := self.method.log(before, self.state):
            self.store.event("note", f"{round_name(self.number)}: {said}")

    def write_refusals(self, refused: list[tuple[Client, str, int]]) -> None:
        """Every reply that an engine left out is an event of the run."""
        for client, verb, number in refused:
            text = f"{round_name(number)}: the reply of client {client} to {verb} is not finite; left out"
            self.store.event("refused", text)
            self.refusals.append(text)
        refused.clear()

    # ---- divergence ----

    def mark_sound(self) -> None:
        """The round that ended is one to go back to."""
        self.sound = self.number, self.state
        if self.rates:
            self.keeps.sound = self.number
        if self.client_noise:
            self.sound_clip = self.client_noise.clip

    def back_off(self, why: AllRefused | Diverged, cohort: Sequence[str] = ()) -> None:
        """Halve the rates that motet chose, and go back to the last round after which all models were sound. What was
        asked since then did cross the wire: it counts with the next round. Private steps stay spent, those of the round
        under way and its `cohort` too.

        Nothing is saved here. A run that is killed before the next round ends diverges once more in the same way.
        """
        if not self.rates or not why.whose:  # no rate that motet chose is to blame
            raise why
        if self.halved == _HALVINGS:
            what, hint, tried = str(why).partition("\nhint:")
            raise type(why)(f"{what}; its rate was halved {_HALVINGS} times before{hint}{tried}") from why
        (number, state), before, rounds = self.sound, self.rates_now, self.number + 1 - self.sound[0]
        asks, alike, self.lost = self.store.abandon(number)
        for client, *asked in asks:
            self.meter.count(client, *asked)
        self.meter.alike += [Alike(names_in(column), *asked) for column, *asked in alike]
        if self.budget and cohort:
            self.store.spent(self.store.first_private() - 1, self.budget.spent_in(cohort))
        if self.client_noise:
            self.client_noise.clip = self.sound_clip
            self.client_noise.short.clear()
        self.engine.refused.clear()
        self.left_out.clear()
        self.keeps.rewind(number)
        self.number, self.state, self.idle = number, state, self.store.idle_rounds()
        self.use_rates(self.halved + 1)
        self.halvings.append({"after": number, "whose": why.whose, "rates": self.rates_now, "rounds": rounds})
        self.spent = self.store.private_rounds() if self.budget else {}
        changed = ", ".join(f"{k} {before[k]:g} -> {v:g}" for k, v in self.rates_now.items())
        first = str(why).partition("\n")[0]
        whence = f"goes on after {round_name(number)}" if number >= 0 else "begins anew"
        self.said.append(f"{first}; {changed}, and training {whence}")
        self.store.event("halved", self.said[-1])

    @property
    def rates_now(self) -> dict[str, float]:
        """The rates that motet chose, as they are after all halvings."""
        return {k: v / 2**self.halved for k, v in self.rates.items()}

    def use_rates(self, halved: int) -> None:
        """Go on with the rates that motet chose, halved so often."""
        if halved == self.halved:
            return
        self.halved = halved
        self.method = replace(self.method, **self.rates_now)
        settings = self.recipe.settings | {"method": self.recipe["method"] | self.rates_now}
        self.recipe = replace(self.recipe, settings=settings)

    # ---- choosing ----

    def evaluate(self) -> None:
        """Score everyone on validation examples, and see whether this is the best round so far."""
        self.latest = self.score(self.evaluator, self.state, self.turn(self.number), "val")
        by, sign = self.recipe.train.by, self.better if self.round_by == self.metric else -1
        scores = {k: v * sign for k, v in self.latest.items() if k == by or by == "both"}
        if not scores:
            return
        score, loss = (sum(d[k] for k in scores) / len(scores) for d in (scores, self.losses))
        risen = any(v > self.peaks.get(k, -math.inf) for k, v in scores.items())
        self.peaks = {k: max(v, self.peaks.get(k, v)) for k, v in scores.items()}
        self.top = max(self.top, score)
        better_now = self.beats_best(score, loss)
        falling = better_now and by != "both" and self.best and loss < (1 - _PROGRESS) * self.best.loss
        if risen or falling:
            self.last_improvement = self.number
        if better_now:
            self.best = Best(self.number, score, self.state, loss, self.halved)
            self.keeps.mark_best()

    def beats_best(self, score: float, loss: float) -> bool:
        """Whether this round is better than the best one so far. Scores of few rows are mostly chance: of rounds
        whose score is within `train.within` standard errors of the highest, the smallest loss is best."""
        best, close = self.best, self.top - self.margin()
        if best is None or math.isnan(best.score):
            return True
        return score >= close and (loss < best.loss or best.score < close)

    def margin(self) -> float:
        """What scores may differ by and count as the same: standard errors of a share of all validation rows."""
        if self.round_by not in _SHARES or self.recipe.train.by == "both":
            return 0.0
        p = (self.top * self.val_rows + 2) / (self.val_rows + 4)  # Agresti and Coull: all right is not sure
        return float(self.recipe.train.within * math.sqrt(max(p * (1 - p), 0.0) / (self.val_rows + 4)))

    def score_after_training(self, before: Tree) -> None:
        """Score clients' models right after local training. Test scores are kept only for the round that
        would be reported now; nothing is chosen by them."""
        turn = self.turn(self.number)
        asks = training(self.method, before, turn)
        if not asks or self.pooled:
            return
        clients, scores = self.engine.evaluate_trained(self.method, asks, turn)
        if not clients:
            return
        self.latest |= self.write(clients, scores["val"], turn.number, "val", "after_training")
        if self.reported().round == self.number:
            self.store.forget_scores("test", "after_training")
            self.write(clients, scores["test"], turn.number, "test", "after_training")

    def score(
        self,
        engine: Engine,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Mapping[str, str] | Sequence[str] = SIDES,
        see: See | None = None,
    ) -> dict[str, float]:
        """Write down everyone's scores of some sides, which a mapping gives other names; return their means."""
        labels = sides if isinstance(sides, Mapping) else {s: s for s in sides}
        m = self.method
        with unchanged(m, turn.number, m.global_model, m.download, state=state):
            clients, scores = engine.evaluate(m, state, turn, part, tuple(labels), see)
        means: dict[str, float] = {}
        if part == "val" and set(labels) >= {"personal"}:
            self.check_divergence(clients, scores, turn.number)
            found = scores.get("personal", {})  # of survival, rows with an event tell most
            self.val_rows = int(found.get("events", found["n"]).sum()) if found else 0
        for side in [s for s in labels if s in scores]:
            means |= self.write(clients, scores[side], turn.number, part, labels[side])
        return means

    def check_divergence(self, clients: list[str], scores: Tree, number: int) -> None:
        """End the run if a model has diverged. A simulated attack may ruin models, which is what it is to show."""
        if self.recipe.guard.attack != "none":
            return
        for side in scores:
            whose, loss = diverged(self.task.kind, self.task.outputs, clients, scores[side])
            if whose:
                why = f"the validation loss of {whose} is {loss}"
                finite = dict(zip(clients, scores[side]["loss"].isfinite().tolist(), strict=True))
                here = self.federated.clients_data
                for client in [c for c, fine in finite.items() if not fine and c in here]:
                    rows = here[client].val.take()
                    if len(rows) and not self.task.loss_over(self.task.w0, rows).isfinite():
                        raise Diverged(f"{round_name(number)}: {why}: {no_loss_at_start(client)}")
                own = "" if side == "personal" else f" ({side} model)"
                text = f"diverged in {round_name(number)}: {why}{own}{rate_hint(self.method)}"
                raise Diverged(text, f"{whose}{own}")

    def write(
        self, clients: list[str], scores: Tree, number: int, part: Part, label: str
    ) -> dict[str, float]:
        """Write down scores of the clients that have examples of this part; return their mean by label."""
        n = scores["n"].long().numpy()
        some = np.flatnonzero(n)
        if not len(some):
            return {}
        found = {k: v.numpy()[some] for k, v in scores.items()}
        measured = {k: v for k, v in found.items() if k in METRICS}
        self.store.scored(number, part, label, [clients[i] for i in some], n[some].tolist(), measured)
        first = part == "val" and self.best is None  # the rule stays as it is from the first scores on
        if first and self.round_by == self.metric and not has_score(self.metric, found).any():
            self.choose_by_loss()
        if part == "val":
            self.losses[label] = mean_score("loss", found)
        return {label: mean_score(self.round_by if part == "val" else self.metric, found)}

    def choose_by_loss(self) -> None:
        """Where no client has a score of the run's metric on its validation examples."""
        self.round_by = "loss"
        self.store.set_facts(round_by="loss")
        name = function_name(self.metric_name)
        self.store.event(
            "metric", f"no client has {name} on its validation rows; the round is chosen by loss"
        )

    def reported(self) -> Best:
        """The round whose models count."""
        if self.recipe.train.report == "best" and self.best is not None:
            return self.best
        return Best(self.number, 0.0, self.state, halved=self.halved)

    # ---- checkpoints ----

    def save(self, spent: bool = False) -> None:
        """All of the rounds so far, in one transaction; what they `spent` of budgets too, which takes a second."""
        if spent and self.budget:
            self.store.set_facts(privacy=self.budget.facts(self.store.private_rounds(), self.played))
        began, b = time.monotonic(), self.best
        states = {b.round: b.state} if b else {}
        states[self.number] = self.state
        if self.rates:
            self.keeps.sound = (
                None if self.over() else self.sound[0]
            )  # nothing is done again once all is done
            states |= {} if self.keeps.sound is None else {self.sound[0]: self.sound[1]}
            self.store.set_facts(sound=self.keeps.sound, halvings=self.halvings)
        best, score = (b.round, b.score) if b else (None, None)
        self.store.checkpoint(self.number, best, score, lambda number: pack(states[number]), self.keeps.sound)
        lowest = b.loss if b and math.isfinite(b.loss) else None
        top = self.top if math.isfinite(self.top) else None
        self.store.set_facts(
            peaks=self.peaks, last_improvement=self.last_improvement, best_loss=lowest, top=top,
            best_halved=b.halved if b else 0,
        )  # fmt: skip
        if self.client_noise:
            self.store.set_facts(clip=self.client_noise.clip, sound_clip=self.sound_clip)
        if self.counted and self.counted.held:
            self.store.set_facts(held={c: sorted(files) for c, files in self.counted.held.items()})
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
        self.state, facts = unpack(self.store.state(self.number)), self.store.facts()
        self.halvings = facts.get("halvings", [])
        self.use_rates(len(self.halvings))
        sound = facts.get("sound")
        self.sound = self.number, self.state
        if sound is not None and sound != self.number:
            self.sound = sound, unpack(self.store.state(sound))
        self.keeps.sound = self.sound[0] if self.rates else None
        if best is not None and score is not None:  # runs before 0.1 have no `peaks`, and `risen`, or neither
            lowest = facts.get("best_loss")  # without one, a round with the same score is not better
            state = unpack(self.store.state(best))
            halved = facts.get("best_halved", 0)
            self.best = Best(best, score, state, -math.inf if lowest is None else lowest, halved)
            self.keeps.best = best
            self.peaks = facts.get("peaks", {self.recipe.train.by: score})
            self.top = facts.get("top") or score
            self.last_improvement = facts.get("last_improvement", facts.get("risen", best))
        self.store.rewind(self.number)
        self.keeps.rewind(self.number)
        if self.budget and self.halved:
            self.spent = self.store.private_rounds()
        if self.client_noise:
            self.client_noise.clip = float(facts["clip"])
            self.sound_clip = float(facts.get("sound_clip", facts["clip"]))
        if self.counted:
            held = self.store.facts().get("held", {})  # files that clients were sent, which go once
            self.counted.held = {c: set(files) for c, files in held.items()}
        self.idle = self.store.idle_rounds()

    def give_up_round(self) -> None:
        """Forget what the round that was interrupted has done so far, and save the rounds before it."""
        self.meter.take()
        self.meter.take_alike()
        self.engine.refused.clear()
        self.keeps.rewind(self.number)
        if self.number >= -1:
            self.save()
