"""Progress of many runs on stderr: a line for each run in flight, and how many are done, failed and left.

Without a terminal, one line for each run that has ended. An error is shown once, however many runs have it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from motet.cli.command import say
from motet.cli.progress import Progress
from motet.runs.jobs import Event, Job, Outcome
from motet.runs.parallel import Watch
from motet.text import duration, function_name

_NAME = 30  # columns of a run's name; a line has at most 80


class StudyProgress(Progress, Watch):
    """The display that all runs of a study share."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self.bars: dict[str, Any] = {}
        self.latest: dict[str, str] = {}  # validation scores, by run
        self.began: dict[str, float] = {}
        self.total = self.done = self.failed = self.read = 0
        self.began_at = time.monotonic()
        self.whole: Any = None
        self.shown: set[str] = set()  # errors
        self.data_notes: set[str] = set()  # notes on data

    def columns(self) -> list[Any]:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.table import Column

        name = Column(max_width=_NAME, no_wrap=True, overflow="ellipsis")
        scores = TextColumn("{task.fields[scores]}", table_column=Column(no_wrap=True))
        return [
            TextColumn("{task.description}", table_column=name),
            BarColumn(8),
            MofNCompleteColumn(),
            scores,
        ]

    def on_begin(self, jobs: Sequence[Job]) -> None:
        self.total, self.done, self.failed, self.read = len(jobs), 0, 0, 0
        self.began_at = time.monotonic()
        if self.live:
            if self.whole is not None:
                self.live.remove_task(self.whole)
            self.whole = self.live.add_task("all runs", total=self.total, scores="")

    def on_event(self, job: Job, event: Event) -> None:
        if event["event"] == "start":
            self.start(job, event)
            return
        for text in event["refusals"]:
            self.say_once(f"{text} (all such replies are among the run's events)")
        for text in event["halved"]:
            self.say_once(f"{job.name}: {text}")
        value = event["scores"].get("personal", event["scores"].get("global"))
        self.latest[job.name] = "" if value is None else in_words(event["metric"], value)
        if self.live and job.name in self.bars:
            self.live.update(self.bars[job.name], completed=event["round"] + 1, scores=self.latest[job.name])

    def start(self, job: Job, event: Event) -> None:
        self.began[job.name] = time.monotonic()
        for note in event["notes"]:
            without_numbers = re.sub(r"\d[\d,]*", "#", note)  # in which splits differ
            if without_numbers not in self.data_notes:
                self.data_notes.add(without_numbers)
                self.say_once(f"data: {note}")
        for remark in event["remarks"]:
            self.say_once(f"note: {remark}")
        if event["metric_why"] and event["metric"] not in ("accuracy", "rmse"):
            self.say_once(f"metric {event['metric_why']}")
        self.say_once(f"engine {event['engine']}: {event['why']}")
        if self.live:
            total = job.upto or event["rounds"]
            bar = self.live.add_task(job.name, total=total, completed=event["first"], scores="")
            self.bars[job.name] = bar

    def on_end(self, outcome: Outcome) -> None:
        name = outcome.job.name
        self.done += not outcome.failure and not outcome.stopped
        self.failed += bool(outcome.failure)
        self.read += outcome.read
        if outcome.failure and outcome.failure not in self.shown:
            self.shown.add(outcome.failure)
            self.out(f"{name}: {outcome.failure}")
        if self.live:
            if name in self.bars:
                self.live.remove_task(self.bars.pop(name))
            ended = self.done + self.failed
            self.live.update(self.whole, completed=ended, scores=self.counts())
        elif not self.quiet:
            self.out(f"[{self.done + self.failed}/{self.total}] {name}: {self.ending(outcome)}")

    def ending(self, outcome: Outcome) -> str:
        if outcome.read:
            return f"read from {outcome.folder}, not run again"
        if outcome.failure or outcome.stopped:
            return "failed" if outcome.failure else "stopped; the same command continues it"
        took = time.monotonic() - self.began.get(outcome.job.name, time.monotonic())
        score = self.latest.get(outcome.job.name, "")
        return f"{score} (validation), {took:.1f} s" if score else f"{took:.1f} s"

    def counts(self) -> str:
        """Failed runs, and the time that is left, from what the others took."""
        ran, left = self.done + self.failed - self.read, self.total - self.done - self.failed
        seconds = (time.monotonic() - self.began_at) / ran * left if ran else 0.0
        parts = [f"{self.failed} failed"] * bool(self.failed) + [f"{self.read} read"] * bool(self.read)
        return ", ".join([*parts, *([f"{duration(seconds)} left"] if left and ran else [])])

    def out(self, text: str) -> None:
        """A line, above the bars if there are any; errors also where progress is not wanted."""
        if self.live:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            say(text)

    def say(self, text: str) -> None:
        self.say_once(text)


def in_words(metric: str, value: float) -> str:
    name = function_name(metric)
    return f"{100 * value:.1f} %" if metric in ("accuracy", "balanced") else f"{name} {value:.4g}"
