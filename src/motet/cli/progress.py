"""Live progress on stderr: rounds, both scores, time left. One line per run where nobody watches."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.runs.trainer import Course


class Progress:
    """A place on the screen for one run after another."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live: Any = None
        self.terminal = sys.stderr.isatty()
        self.said: set[str] = set()

    def __enter__(self) -> Progress:
        if self.terminal and not self.quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (TextColumn("{task.description:<12}"), BarColumn(24), MofNCompleteColumn())
            self.live = Bars(
                *columns,
                TimeRemainingColumn(),
                TextColumn("{task.fields[scores]}"),
                console=Console(stderr=True),
            )
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def say_once(self, text: str) -> None:
        """Something to know before the rounds begin, not said again for the next run."""
        if not self.quiet and text not in self.said:
            self.said.add(text)
            show = self.live.console.print if self.live else print
            show(text, **({"highlight": False} if self.live else {"file": sys.stderr, "flush": True}))

    def watch(self, recipe: Any, place: int = 0, of: int = 1) -> Watching:
        return Watching(self, f"[{place + 1}/{of}] " if of > 1 else "")


class Watching:
    """One run, being watched."""

    def __init__(self, screen: Progress, place: str) -> None:
        self.screen, self.place = screen, place
        self.bar: Any = None
        self.began_at = time.monotonic()
        self.first = 0
        self.refused = False

    def began(self, course: Course) -> None:
        self.first = max(course.number + 1, 0)
        for note in course.federation.notes:
            self.screen.say_once(f"data: {note}")
        self.screen.say_once(f"engine {course.choice.name}: {course.store.facts()['engine_why']}")
        name, rounds = course.recipe["method"]["name"], course.recipe.train.rounds
        if self.screen.live:
            self.bar = self.screen.live.add_task(name, total=rounds, completed=self.first, scores="")
        elif not self.screen.quiet:
            again = f", going on after round {self.first}" if self.first else ""
            clients = len(course.federation.homes)
            print(
                f"{self.place}{name}: {clients} clients, {rounds} rounds, {course.choice.name} engine{again}",
                file=sys.stderr,
                flush=True,
            )

    def ended(self, course: Course, seconds: float) -> None:
        if course.refusals and not self.refused:
            self.refused = True
            self.screen.say_once(f"{course.refusals[0]} (all such replies are among the run's events)")
        text = "  ".join(f"{side} {score(course, value)}" for side, value in sorted(course.latest.items()))
        if self.screen.live:
            self.screen.live.update(self.bar, completed=course.number + 1, scores=text)
        elif not self.screen.quiet and course.over():
            took = time.monotonic() - self.began_at
            print(
                f"{self.place}  round {course.number + 1}: {text} (validation), {took:.1f} s",
                file=sys.stderr,
                flush=True,
            )

    def stop(self) -> bool:
        return False


def score(course: Course, value: float) -> str:
    return f"{100 * value:.1f} %" if course.task.kind == "classes" else f"{value:.4g}"
