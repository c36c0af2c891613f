"""One run of many: what is to be done, what it tells while it trains, and how it ended.

The same code performs a job in this process and in a worker process; what it tells is plain data.
Knows how to run one recipe. Does not know how many there are.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.errors import Damaged, MotetError, Stopped
from motet.runs.build import Resolved, resolve
from motet.runs.recipe import Recipe
from motet.runs.run import folder_for, run
from motet.runs.run_folder import Busy
from motet.runs.store import metric_of
from motet.runs.store_file import FILE
from motet.settings import SESSION

if TYPE_CHECKING:
    from motet.runs.trainer import Trainer

_PAUSE = 0.5  # seconds between two looks at whether another process is done with a run
Event = dict[str, Any]  # "event" is its kind: start, round or said


@dataclass(frozen=True)
class Job:
    """One run that is to be done."""

    name: str  # for people; no two jobs of a study have the same
    recipe: Recipe
    folder: Path | None = None  # by default one named after the run
    after: tuple[str, ...] = ()  # names of jobs that must be done before
    upto: int = 0  # stop after this round, to be continued later; 0 = train to the end

    @property
    def only_here(self) -> bool:
        """Whether it needs code that was defined in a notebook or script, which other processes lack."""
        return f'"{SESSION}' in json.dumps(self.recipe.settings)


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    folder: Path | None = None  # None if it could not begin
    failure: str = ""
    read: bool = False  # it was done before and was not run again
    stopped: bool = False  # somebody stopped it; it can be continued
    damaged: bool = False  # its folder holds a run that cannot be read

    @property
    def held(self) -> bool:
        """Whether there is a run to read, failed or not."""
        return self.folder is not None and not self.damaged and (self.folder / FILE).exists()


class Reporter:
    """An observer that tells what happens as plain data, and stops where it is asked to."""

    def __init__(
        self, report: Callable[[Event], None], asked: Callable[[], bool], job: Job, folder: Path
    ) -> None:
        self.report, self.asked, self.job, self.folder = report, asked, job, folder
        self.began, self.ended = False, 0  # rounds that ended
        self.metric = ""  # what the rounds are scored by
        self.raised: Exception | None = None  # by whoever was told

    def on_start(self, trainer: Trainer) -> None:
        self.began, self.ended = True, max(trainer.number + 1, 0)
        facts = trainer.store.facts()
        self.metric = facts.get("round_by") or metric_of(facts)
        self._report(
            event="start", folder=str(self.folder), first=self.ended, rounds=trainer.recipe.train.rounds,
            clients=len(trainer.federated.clients_data), notes=trainer.federated.notes,
            remarks=facts.get("remarks", []), engine=trainer.choice.name, why=facts["engine_why"],
            metric=self.metric, metric_why=facts.get("metric_why", ""),
        )  # fmt: skip

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        self.ended = trainer.number + 1
        self._report(
            event="round", method=trainer.recipe["method"]["name"], seed=trainer.recipe.seed,
            round=trainer.number, rounds=trainer.recipe.train.rounds, scores=dict(trainer.latest),
            seconds=seconds, metric=self.metric, refusals=trainer.refusals[:1], halved=list(trainer.said),
        )  # fmt: skip

    def _report(self, **event: Any) -> None:
        try:
            self.report(event)
        except Exception as e:  # noqa: BLE001 a callback of the user's own: the run is saved first
            self.raised = e

    def should_stop(self) -> bool:
        return self.enough or self.raised is not None or self.asked()

    @property
    def enough(self) -> bool:
        return 0 < self.job.upto <= self.ended


def perform_one(
    job: Job,
    base: str | Path,
    report: Callable[[Event], None],
    asked: Callable[[], bool] = lambda: False,
    fresh: bool = False,
) -> Outcome:
    """Run one job; what goes wrong is in what it returns. Its data and network are forgotten on return."""
    reporter, folder = None, job.folder
    try:
        resolved = resolve(job.recipe)
        folder = folder or folder_for(resolved, base)
        reporter = Reporter(report, asked, job, folder)
        more: Any = {"fresh": True} if fresh else {}
        run_when_free(resolved, folder, reporter, more, asked)
    except Stopped:
        assert reporter is not None
        if reporter.raised:
            raise reporter.raised from None
        return Outcome(job, folder, stopped=not reporter.enough)
    except MotetError as e:
        return Outcome(job, folder, str(e), damaged=isinstance(e, Damaged))
    except Exception as e:  # noqa: BLE001 a bug, mostly in code of the user's own: the other runs go on
        return Outcome(job, folder, where_and_what(e))
    if reporter.raised:
        raise reporter.raised
    return Outcome(job, folder, read=not reporter.began)


def run_when_free(
    resolved: Resolved, folder: Path, reporter: Reporter, more: dict[str, Any], asked: Callable[[], bool]
) -> None:
    """Run; where another process is at the same run, wait for it and read what it has done."""
    while True:
        try:
            run(resolved, folder, reporter, **more)
            return
        except Busy:
            if asked():
                raise
        time.sleep(_PAUSE)


def where_and_what(e: Exception) -> str:
    """An unexpected error in a line, with the place where it was raised."""
    place = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {e} ({place.filename}:{place.lineno})"
