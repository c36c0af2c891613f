"""All methods on one data set after another: tune each with the same budget, then train with every seed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import log10
from pathlib import Path
from typing import Any

from experiments.leaderboard.standings import Standing, standing_of

from motet.cli.reproduce_command import commit
from motet.errors import MotetError
from motet.runs import recipe as recipes
from motet.runs.experiment import fitting
from motet.runs.find_methods import method_names
from motet.runs.jobs import Job, Outcome
from motet.runs.parallel import Watch
from motet.runs.parallel import perform as perform_jobs
from motet.runs.study import Row
from motet.runs.tune import Search, search_of

Say = Callable[[str], None]
Settings = Mapping[str, Any]
ALWAYS = ("local", "fedavg")  # what all others are held against
_FIRST, _LEFT = 1 / 3, 2  # part of the rounds that all settings are trained for, and how many go on
_STEP = 0.5  # how far the nearest rates of a board are from the default, in powers of ten


@dataclass
class Entrants:
    """The methods on one data set: which settings each may try, and which do not apply."""

    searches: list[Search] = field(default_factory=list)
    plain: list[Row] = field(default_factory=list)  # have nothing to tune
    unfit: dict[str, str] = field(default_factory=dict)  # why, by name

    @property
    def rows(self) -> list[Row]:
        return [s.chosen for s in self.searches] + self.plain


def perform(settings: Settings, out: Path, jobs: int, say: Say) -> dict[str, Any]:
    """Each data set's standing, kept in a file of `out`; rows of a table, one for each data set and method."""
    found = {}
    for name in settings["rows"]:
        say(f"{name}:")
        standing = contest(name, settings, out / name, jobs, say)
        (out / f"{name}.json").write_text(json.dumps(standing, indent=1) + "\n")
        found |= {f"{name}, {method}": as_row(one) for method, one in standing["methods"].items()}
    return found


def as_row(one: Mapping[str, Any]) -> dict[str, Any]:
    columns = {"over alone": one["alone"]["mean"], "over FedAvg": one["fedavg"]["mean"]}
    gains = {column: [v] for column, v in columns.items() if v is not None}
    return {
        "values": {"score": one["scores"], **gains},
        "failures": one["failures"],
        "seconds": one["seconds"],
    }


def contest(name: str, settings: Settings, out: Path, jobs: int, say: Say) -> Standing:
    """One data set: who may try what, tuning, and the runs of the table."""
    begun, seed = time.time(), int(settings["tuning_seed"])
    dear = settings["leave_out"].get(name, {})
    rows = [row_of(m, name, settings) for m in chosen_methods(settings) if m not in dear]
    entrants = entered(rows, seed, settings["budget"])
    tune(entrants.searches, seed, out / "tuning", jobs, Lines(say))
    asked = [
        (row, Job(f"{row.label}, seed {s}", row.recipe(s, s)))
        for row in entrants.rows
        for s in settings["seeds"]
    ]
    outcomes = perform_jobs([job for _, job in asked], out, jobs, Lines(say))
    by_method: dict[str, list[Outcome]] = {}
    for (row, _), outcome in zip(asked, outcomes, strict=True):
        by_method.setdefault(row.label, []).append(outcome)
    tuned = {s.row.label: (s.sentence, len(s.tried)) for s in entrants.searches}
    return standing_of(name, by_method, tuned, dear | entrants.unfit) | {
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)),
        "commit": commit(Path(__file__).parent),
        "seeds": list(settings["seeds"]),
        "budget": settings["budget"],
        "settings": settings["sets"][name],
    }


def chosen_methods(settings: Settings) -> list[str]:
    """All methods that there are, or those that were asked for; what others are held against is always there."""
    said = settings["methods"]
    asked = method_names() if said == "all" else said.split(",") if isinstance(said, str) else list(said)
    return [*ALWAYS, *(m for m in asked if m not in ALWAYS)]


def row_of(method: str, name: str, settings: Settings) -> Row:
    """A method on a data set, with the settings that all methods share."""
    own = {"method": {"name": method}}
    made = fitting(settings["shared"], own)
    for part in (deepcopy(settings["sets"][name]), own):
        recipes.merge(made, part)
    return Row(method, made, frozenset(made["method"]) - {"name"})


def entered(rows: Sequence[Row], seed: int, budget: int) -> Entrants:
    """Who can take part: a method that does not apply says so before anything is trained."""
    found = Entrants()
    for row in rows:
        try:
            search = search_of(row, seed, seed)
        except MotetError as e:
            if row.label in ALWAYS:
                raise  # it applies to every data set: the data are missing, or the settings are wrong
            found.unfit[row.label] = str(e).split("\n")[0]
            continue
        if search is None or budget < 2:
            found.plain.append(row)
        else:
            few = spread(search.tried, budget)
            found.searches.append(Search(row, few, search.rounds, search.every, list(few)))
    return found


def spread(tried: Sequence[dict[str, Any]], budget: int) -> list[dict[str, Any]]:
    """So many of the settings that --tune tries, the default first, spread as it spreads them.

    With a rate and a strength: first those whose rate is half a power of ten from the default, with the strength above
    and below. With one setting: as many as fit, evenly from the lowest to the highest.

    >>> rates = [{"lr": 10 ** (k / 6)} for k in (0, *range(-6, 0), *range(1, 7))]
    >>> [round(one["lr"], 1) for one in spread(rates, 5)]
    [1.0, 0.1, 0.3, 3.2, 10.0]
    """
    if len(tried) <= budget:
        return list(tried)
    first, rest = tried[0], tried[1:]
    if len(first) == 1:
        (key,) = first
        ordered = sorted(tried, key=lambda one: float(one[key]))
        places = {round(i * (len(ordered) - 1) / (budget - 1)) for i in range(budget)}
        return [first, *(ordered[i] for i in sorted(places) if ordered[i] != first)][:budget]
    by_rate = sorted(rest, key=lambda one: round(abs(abs(log10(one["lr"] / first["lr"])) - _STEP), 1))
    return [first, *by_rate[: budget - 1]]


def tune(searches: Sequence[Search], seed: int, out: Path, jobs: int, watch: Watch) -> None:
    """Leave each search with its best setting, by validation rows."""
    for part, keep in ((_FIRST, _LEFT), (1.0, 1)):
        stage = [(s, s.jobs(seed, seed, last_round(s, part))) for s in searches]
        ended = iter(perform_jobs([j for _, some in stage for j in some], out, jobs, watch))
        for search, some in stage:
            search.select([next(ended) for _ in some], keep)


def last_round(search: Search, part: float) -> int:
    """The round at which a stage ends; one that is scored."""
    return min(-(-int(search.rounds * part) // search.every) * search.every, search.rounds)


class Lines(Watch):
    """A line for each run that ended."""

    def __init__(self, say: Say) -> None:
        self.show = say

    def on_end(self, outcome: Outcome) -> None:
        said = outcome.failure.split("\n")[0] or ("read" if outcome.read else "done")
        self.show(f"  {outcome.job.name}: {said}")
