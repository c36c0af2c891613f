"""Tuning: every method gets the same small budget to find its learning rate and its one own strength.

Thirteen settings around the default are trained for a quarter of the rounds, the better half of them for half, the
best two to the end. Runs are continued, so no round is trained twice. What is chosen has the best score on validation
rows, of the first seed and the first split alone; test rows are never looked at.
Knows settings, budgets and validation scores. Does not know how runs are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.jobs import Job, Outcome
from motet.runs.parallel import AtOnce, Watch, perform
from motet.runs.recipe import Settings
from motet.runs.store import Store
from motet.runs.study import Row, Study
from motet.settings import Field

FOLDER = "tuning"  # below the folder of the runs
_RATES = (0.1, 0.3, 1.0, 3.0, 10.0)  # factors on the default learning rate
_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # factors on the default strength
_COUNTS = (0.2, 0.4, 1.0, 2.0, 4.0)  # of a strength that is a number of epochs, which cost time
_ALONE = tuple(10 ** (k / 6) for k in range(-6, 7))  # of the rate, for a method without a strength
_PARTS = (0.25, 0.5, 1.0)  # of the rounds, stage by stage
_BEST = 2  # settings that are trained to the end


@dataclass
class Search:
    """The settings of one row that are still in the race."""

    row: Row
    tried: list[Settings]
    rounds: int
    every: int  # rounds between two evaluations
    left: list[Settings]
    trained: int = 0  # rounds in all
    upto: int = 0  # rounds that those in the race have had
    won: bool = False  # whether any could be trained

    def jobs(self, seed: int, split: int, upto: int) -> list[Job]:
        names = [f"tuning {self.row.label} {in_words(values)}" for values in self.left]
        self.trained += len(self.left) * (upto - self.upto)
        self.upto = upto
        made = [self.row.with_method(**values).recipe(seed, split) for values in self.left]
        return [Job(name, recipe, upto=upto) for name, recipe in zip(names, made, strict=True)]

    def select(self, outcomes: Sequence[Outcome], keep: int) -> None:
        """Keep the best settings; of equal ones those that stand first, the default before all."""
        scores = [(-math.inf, -math.inf) if o.failure else validation_score(o.folder) for o in outcomes]
        order = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)
        self.won = scores[order[0]][0] > -math.inf
        self.left = [self.left[i] for i in order[:keep]]

    @property
    def chosen(self) -> Row:
        return self.row.with_method(**self.left[0]) if self.won else self.row

    @property
    def sentence(self) -> str:
        cost = f"{self.trained / self.rounds:.2g} runs' worth of rounds"
        if not self.won:
            return f"tuning found nothing: all of {len(self.tried)} settings failed, {cost}"
        return f"{in_words(self.left[0])}: best of {len(self.tried)} on validation rows, {cost}"


def tune(
    study: Study, base: str | Path, at_once: AtOnce = 1, watch: Watch | None = None, fresh: bool = False
) -> tuple[Study, dict[str, str]]:
    """The study with tuned settings, and a sentence for each row that was tuned."""
    seed, split, watch = study.seeds[0], study.splits[0], watch or Watch()
    searches = [s for row in study.rows if (s := search_of(row, seed, split))]
    for part in _PARTS:
        stage = [(s, s.jobs(seed, split, upto_of(s, part))) for s in searches]
        outcomes = iter(
            perform([j for _, jobs in stage for j in jobs], Path(base) / FOLDER, at_once, watch, fresh)
        )
        for search, jobs in stage:
            keep = len(jobs) // 2 if part == _PARTS[0] else _BEST if part == _PARTS[1] else 1
            search.select([next(outcomes) for _ in jobs], max(keep, 1))
        fresh = False  # what was begun anew is continued
    found = {s.row.label: s for s in searches}
    rows = tuple(found[r.label].chosen if r.label in found else r for r in study.rows)
    return replace(study, rows=rows), {label: s.sentence for label, s in found.items()}


def upto_of(search: Search, part: float) -> int:
    """The round at which a stage ends; one that is scored."""
    return min(math.ceil(search.rounds * part / search.every) * search.every, search.rounds)


def search_of(row: Row, seed: int, split: int) -> Search | None:
    """What there is to try for a row; None if everything was given or the method has nothing to tune."""
    resolved = resolve(row.recipe(seed, split)).recipe
    tried = candidates(row, resolved["method"])
    if len(tried) < 2:
        return None
    return Search(row, tried, resolved.train.rounds, max(resolved.train.evaluate, 1), list(tried))


def candidates(row: Row, method: Settings) -> list[Settings]:
    """Settings around those of a resolved recipe, the default first; `method` has no "auto" in it."""
    name = method["name"]
    known = recipes.known_fields("method", {"name": name})[1]
    strength = getattr(recipes.method_class(name), "strength", "")
    rate = "lr" if "lr" in known and "lr" not in row.given else ""
    strength = strength if strength in known and strength not in row.given else ""
    if rate and strength:
        strengths = _COUNTS if isinstance(method[strength], int) else _STRENGTHS
        # every second field of a board of five by five: both ranges whole, with half of the runs
        pairs = [(a, b) for i, a in enumerate(_RATES) for j, b in enumerate(strengths) if (i + j) % 2 == 0]
        found = [
            {rate: scaled(method[rate], a), strength: scaled(method[strength], b)}
            for a, b in sorted(pairs, key=lambda p: p != (1.0, 1.0))
        ]
    else:
        one = rate or strength
        counted = one and isinstance(method[one], int)
        factors: Sequence[float] = _COUNTS if counted else _ALONE if rate else _STRENGTHS
        found = [{one: scaled(method[one], f)} for f in sorted(factors, key=lambda f: f != 1.0) if one]
    fitting = [values for values in found if fits(values, known)]
    return [values for i, values in enumerate(fitting) if values not in fitting[:i]]


def scaled(value: Any, factor: float) -> Any:
    """A multiple of a number, with two digits; whole numbers stay whole."""
    if factor == 1.0:
        return value
    return max(round(value * factor), 1) if isinstance(value, int) else float(f"{value * factor:.2g}")


def fits(values: Settings, known: dict[str, Field]) -> bool:
    return not any(known[k].check(v)[1] for k, v in values.items())


def in_words(values: Settings) -> str:
    return ", ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())


def validation_score(folder: Path | None) -> tuple[float, float]:
    """How good a run is on validation rows at the round that it would report now; more is better. The loss decides
    between equal scores: with few rows, many are equal."""
    if folder is None:
        return -math.inf, -math.inf
    with closing(Store(folder)) as store:
        facts, frame, saved = store.facts(), store.frame("scores"), store.saved()
    latest, best = (saved[0], saved[1]) if saved else (-1, None)
    report = facts["settings"]["train"]["report"]
    at = latest if best is None or report == "last" else best
    rows = frame[(frame["part"] == "val") & (frame["side"] == "personal") & (frame["round"] == at)]
    by = facts.get("round_by", facts["metric"])  # the loss where no validation rows have the metric
    if facts["status"] == "failed" or rows.empty or by not in rows:
        return -math.inf, -math.inf
    score = float(rows[by].mean()) * (facts["better"] if by == facts["metric"] else -1)
    loss = -float(rows["loss"].mean()) if "loss" in rows else 0.0
    return (score, loss) if math.isfinite(score) and math.isfinite(loss) else (-math.inf, -math.inf)
