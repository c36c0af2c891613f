"""What coalitions of a round's clients are worth to each site, and contributions summed over a replay.

A coalition's worth at a site is how well the model scores on the site's validation rows that the round would have made
from the coalition's replies alone: the loss with its sign turned, or the run's metric.
Knows rounds and scores of validation rows; test rows are never asked for. Does not know how values are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from motet.audits.recorded_replies import Recorder, plain_if_masked, rebuilt
from motet.audits.replay import innermost
from motet.audits.shapley import MOST_EXACT, RoundValues, Sampling, Values, exact, gtg, summed
from motet.client.data import seed_of
from motet.core import Client, Tree
from motet.engines.loop import Loop
from motet.errors import RunError
from motet.runs.trainer import Trainer

Array = np.ndarray[Any, Any]
How = Literal["auto", "exact", "gtg"]
By = Literal["loss", "metric"]
_REWEIGHED = 2.0  # times the median weight from which a client's weight is tried at the median


@dataclass(frozen=True)
class Scorer:
    """Scores a server's state on all sites' validation rows."""

    loop: Loop
    side: str  # whose models are scored: global, or personal
    by: By
    metric: str
    better: int

    def __call__(self, trainer: Trainer, state: Tree, turn: Any) -> tuple[list[Client], Array]:
        """The sites with validation rows, and what the state is worth at each."""
        clients, found = self.loop.evaluate(trainer.method, state, turn, "val", (self.side,))
        if self.side not in found:
            raise RunError(f"{type(trainer.method).__name__} has no {self.side} model\nhint: --side personal")
        scores = found[self.side]
        some = np.flatnonzero(scores["n"].numpy())
        worth = -scores["loss"] if self.by == "loss" else self.better * scores[self.metric]
        return [clients[i] for i in some], worth.double().numpy()[some]


def side_of(trainer: Trainer, asked: str) -> str:
    """The global model's, unless the method has none: personal models keep what clients learned before."""
    if asked != "auto":
        return asked
    return "personal" if trainer.method.global_model(trainer.state) is None else "global"


@dataclass
class Measurement:
    """Contributions of one replay, round by round."""

    recorder: Recorder
    scorer: Scorer
    players: Sequence[Client]
    way: How
    seed: int
    sampling: Sampling
    sites: list[Client] = field(default_factory=list)  # whose validation rows have the score
    unmeasured: list[Client] = field(
        default_factory=list
    )  # whose have not: say AUC where all are of one class
    rounds: list[RoundValues] = field(default_factory=list)
    gained: float = 0.0
    lighter: dict[Client, list[Array]] = field(
        default_factory=dict
    )  # by client: what sites gain if it weighs less

    @classmethod
    def of(cls, trainer: Trainer, way: How, by: By, side: str, seed: int, sampling: Sampling) -> Measurement:
        """Set up before the first round: from then on the trainer's replies are recorded."""
        loop = innermost(trainer.engine)
        trainer.engine = recorder = Recorder(trainer.engine, loop)
        scorer = Scorer(loop, side, by, trainer.metric, trainer.better)
        return cls(recorder, scorer, sorted(loop.clients), way, seed, sampling)

    def on_round(self, trainer: Trainer, before: Tree) -> None:
        """Measure the round that ended."""
        if self.scorer.side == "auto":
            self.scorer = replace(self.scorer, side=side_of(trainer, "auto"))
        asks, turn = self.recorder.asks, self.recorder.turn
        cohort = sorted({c for a in asks for c in a.replies})
        fold = plain_if_masked(self.recorder.fold)

        def worth(members: frozenset[int], weights: dict[Client, float] | None = None) -> Array:
            names = {cohort[i] for i in members}
            state = rebuilt(trainer.method, before, turn, asks, names, fold, weights)  # type: ignore[arg-type]
            return self.at_sites(*self.scorer(trainer, state, turn))

        found = self.solved(len(cohort), worth, cohort, trainer)
        self.rounds.append(self.for_all(found, cohort))
        self.gained += abs(float(found.matrix.sum(0).mean()))
        self.reweigh(worth, cohort)

    def at_sites(self, clients: Sequence[Client], worth: Array) -> Array:
        """The worth at sites that have the score, which are those of the first model that is scored."""
        if not self.sites:
            self.sites = [c for c, w in zip(clients, worth, strict=True) if not np.isnan(w)]
            self.unmeasured = [c for c in clients if c not in self.sites]
        if not self.sites:
            none = f"no client has {self.scorer.metric} on its validation rows\nhint: --by loss"
            raise RunError(
                none if clients else "no client has validation rows, on which all this is measured"
            )
        return np.array([worth[clients.index(c)] for c in self.sites])

    def solved(
        self, many: int, worth: Callable[..., Array], cohort: Sequence[Client], trainer: Trainer
    ) -> RoundValues:
        nothing = worth(frozenset())  # also says which sites there are
        if not many:
            none = np.zeros(0)
            return RoundValues(np.zeros((0, len(nothing))), none, 0.0, none, 1)
        own = self.own(cohort)
        if self.way == "exact" or (self.way == "auto" and many <= MOST_EXACT):
            return exact(many, worth, own)
        rng = np.random.default_rng(seed_of(self.seed, "shapley", trainer.number))
        return gtg(many, worth, own, rng, self.sampling, self.gained)

    def own(self, clients: Sequence[Client]) -> list[int | None]:
        """Where each client's own site stands among the sites."""
        place = {c: i for i, c in enumerate(self.sites)}
        return [place.get(c) for c in clients]

    def for_all(self, found: RoundValues, cohort: Sequence[Client]) -> RoundValues:
        """The same with a row for every client; who was not asked brought nothing."""
        at = [self.players.index(c) for c in cohort]
        many = len(self.players)
        matrix, variance, hidden = np.zeros((many, len(self.sites))), np.zeros(many), np.zeros(many)
        matrix[at], variance[at], hidden[at] = found.matrix, found.variance, found.hidden
        return replace(found, matrix=matrix, variance=variance, hidden=hidden)

    def reweigh(self, worth: Callable[..., Array], cohort: Sequence[Client]) -> None:
        """What sites gain if a client that weighs far more than most weighed as the median."""
        weights = next((a.weights for a in self.recorder.asks if len(a.weights) > 2), {})
        median = float(np.median(list(weights.values()))) if weights else 0.0
        everyone = frozenset(range(len(cohort)))
        for c in sorted(c for c, w in weights.items() if w > _REWEIGHED * median > 0):
            gain = worth(everyone, {c: median}) - worth(everyone)
            self.lighter.setdefault(c, []).append(gain)

    def values(self) -> Values:
        return summed(self.rounds, self.own(self.players))
