"""Scores that a site sends: whether they can be scores of so many rows at all.

A server cannot see the rows behind a score. It can see that a share is above 1, that a loss is below 0, that a loss
is lower than the wrong answers alone make it, and that a number of rows is not the one that was agreed on. The
agreed number counts, whatever a reply says.
Knows metrics and their ranges. Does not know sites, letters or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from motet.client.losses import Criterion, Kind
from motet.client.metrics import fitting
from motet.client.task import Task
from motet.core import Tree
from motet.wire import WireError

MOST_ROWS = 10**9  # of a site; no table that a site's process can hold has more
_SLACK = 1e-6  # of sums that were rounded
_ROUGH = 0.95  # how well scores must fit each other, where a site rounds what leaves
_ERRORS = ("rmse", "mae", "pinball", "deviance")
_SHARES = ("accuracy", "balanced", "auc", "f1", "ece")
_LOST = {
    "numbers": 10_000.0,
    "classes": 1_000.0,
    "survival": 1_000.0,
}  # times the loss of a constant: no sound model has it


@dataclass(frozen=True)
class ScoreRules:
    """What the scores of one client must be, for one task."""

    kind: Kind
    outputs: int
    scale: float  # of numbers that are predicted
    own: bool  # whether a user's own metric is among them
    loss: Criterion = Criterion()  # what is trained; of the usual ones, more is known

    @classmethod
    def of(cls, task: Task) -> ScoreRules:
        return cls(task.kind, task.outputs, float(task.scale), task.own is not None, task.criterion)

    @property
    def names(self) -> set[str]:
        more = {"n"} | ({"pairs"} if self.kind == "classes" else set()) | ({"own"} if self.own else set())
        return more | set(fitting(self.kind, self.loss.name))

    def numbers(self, scores: Tree) -> dict[str, float]:
        """The scores as numbers, if each is a single one and all that are expected are there."""
        if not isinstance(scores, dict) or set(scores) != self.names:
            raise WireError(f"scores must be {', '.join(sorted(self.names))}, and nothing else")
        if odd := [k for k, v in scores.items() if not _single(v)]:
            raise WireError(f"the score {odd[0]} is no single number")
        return {k: float(v) for k, v in scores.items()}

    def check(self, scores: Tree, rows: int | None = None, *, counted: bool = True) -> dict[str, Tensor]:
        """The scores of `rows` rows, or of as many as they say themselves; a WireError with the reason if they
        cannot be that. Not `counted`: the site lets no numbers of rows leave."""
        s = self.numbers(scores)
        if not (0 <= s["n"] <= MOST_ROWS and s["n"] == math.floor(s["n"])):
            raise WireError(f"its scores are said to be of {s['n']:g} rows")
        n = int(s["n"]) if rows is None else rows
        if n and not s["n"]:
            raise WireError(f"its scores are said to be of no rows, and {n} were agreed on")
        if n:
            self._check_ranges(s)
            self._check_fit(s)
        found = dict(scores) | {"n": torch.tensor(float(n), dtype=torch.float64)}
        return found if self.kind == "numbers" else found | {"pairs": self._pairs(s["pairs"], n, counted)}

    def lost(self, scores: Mapping[str, Tensor]) -> bool:
        """Whether the loss is one that no sound model has: training diverged, or the site lies."""
        loss = float(scores["loss"])
        if not self.loss.usual:
            return bool(float(scores["n"])) and not math.isfinite(loss)
        constant = 1.0 if self.kind == "numbers" else math.log(max(self.outputs, 2))
        return bool(float(scores["n"])) and not loss <= _LOST[self.kind] * constant

    def _check_ranges(self, s: Mapping[str, float]) -> None:
        sound = math.isfinite(s["loss"])  # where predictions are no numbers, neither are most scores
        for name in (k for k in _SHARES if k in s):
            none = math.isnan(s[name]) and (not sound or (name == "auc" and s["pairs"] == 0))
            if not none and not -_SLACK <= s[name] <= 1 + _SLACK:
                raise WireError(f"its {name} is {s[name]:g}, and a share is between 0 and 1")
        if s["loss"] < 0 and self.loss.own is None:
            raise WireError(f"its loss is {s['loss']:g}, and a loss is 0 at least")
        if "own" in s and math.isinf(s["own"]):
            raise WireError("its score of the run's own metric is not finite")
        if not sound:
            return
        tops = {"brier": 1.0 if self.outputs == 2 else 2.0} | dict.fromkeys(_ERRORS, math.inf)
        for name, top in ((k, v) for k, v in tops.items() if k in s):
            if not (0 <= s[name] <= top + _SLACK and math.isfinite(s[name])):
                raise WireError(f"its {name} is {s[name]:g}")
        if "r2" in s and not -math.inf < s["r2"] <= 1 + _SLACK:
            raise WireError(f"its r2 is {s['r2']:g}, and at most 1 is possible")

    def _check_fit(self, s: Mapping[str, float]) -> None:
        """A row whose class is not found has a probability of one half at most, which costs log 2 and more."""
        if not math.isfinite(s["loss"]):
            return
        if not self.loss.usual:
            self._check_unit(s)
            return
        if self.kind == "classes":
            wrong = 1 - min(s["accuracy"], 1.0)
            if s["loss"] < _ROUGH * wrong * math.log(2) - _SLACK:
                raise WireError(
                    f"its accuracy {s['accuracy']:g} and its loss {s['loss']:g} do not fit each other"
                )
        elif (
            not _near(s["rmse"], math.sqrt(s["loss"]) * self.scale) or s["mae"] * _ROUGH > s["rmse"] + _SLACK
        ):
            raise WireError(
                f"its rmse {s['rmse']:g}, mae {s['mae']:g} and loss {s['loss']:g} do not fit each other"
            )

    def _check_unit(self, s: Mapping[str, float]) -> None:
        """Errors that are a loss in another unit, or that no loss explains."""
        units = {"absolute": ("mae", self.scale), "quantile": ("pinball", self.scale),
                 "poisson": ("deviance", 2 * self.loss.rate)}  # fmt: skip
        name, unit = units.get(self.loss.name, ("", 1.0))
        if name and not _near(s[name], s["loss"] * unit):
            raise WireError(f"its {name} {s[name]:g} and its loss {s['loss']:g} do not fit each other")
        if "rmse" in s and s["mae"] * _ROUGH > s["rmse"] + _SLACK:
            raise WireError(f"its rmse {s['rmse']:g} and mae {s['mae']:g} do not fit each other")

    def _pairs(self, pairs: float, n: int, counted: bool) -> Tensor:
        """How many pairs of rows an AUC compares, which is its weight in a mean; where numbers of rows stay at the
        site, it weighs 1, as in other means."""
        most = n * n * (0.25 if self.outputs == 2 else 1 - 1 / self.outputs) if counted else math.inf
        if not 0 <= pairs <= most + _SLACK:
            raise WireError(f"its AUC is said to compare {pairs:g} pairs of rows")
        return torch.tensor(pairs if counted else min(pairs, 1.0), dtype=torch.float64)


def _single(v: Any) -> bool:
    return isinstance(v, Tensor) and v.ndim == 0 and v.is_floating_point()


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1 - _ROUGH, abs_tol=_SLACK)
