"""Progress on stderr: rounds, both scores, time left; without a terminal, one line for each run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Self

from motet.cli.command import say
from motet.text import function_name

if TYPE_CHECKING:
    from motet.runs.trainer import Trainer


class Progress:
    """The display that several runs share, one after another."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live: Any = None
        self.terminal = sys.stderr.isatty()
        self.said: set[str] = set()

    def __enter__(self) -> Self:
        if self.terminal and not self.quiet:
            from rich.console import Console
            from rich.progress import Progress as Bars

            self.live = Bars(*self.columns(), console=Console(stderr=True))
            self.live.start()
        return self

    def columns(self) -> list[Any]:
        """What a line shows."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        name, scores = TextColumn("{task.description:<12}"), TextColumn("{task.fields[scores]}")
        return [name, BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(), scores]

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def say_once(self, text: str) -> None:
        """A line before the first round, not repeated for the next run."""
        if not self.quiet and text not in self.said:
            self.said.add(text)
            if self.live:
                self.live.console.print(text, highlight=False)
            else:
                say(text)

    def observer(self, recipe: Any) -> RunProgress:
        return RunProgress(self, recipe)


class RunProgress:
    """Shows the progress of one run."""

    def __init__(self, screen: Progress, recipe: Any) -> None:
        self.screen, self.recipe = screen, recipe
        self.bar: Any = None
        self.began_at = time.monotonic()
        self.first = 0
        self.refused = False

    def on_start(self, trainer: Trainer) -> None:
        self.first = max(trainer.number + 1, 0)
        if self.recipe is not None:
            self.screen.say_once(self.recipe.digest())
        for note in trainer.federated.notes:
            self.screen.say_once(f"data: {note}")
        for remark in trainer.store.facts().get("remarks", []):
            self.screen.say_once(f"note: {remark}")
        if trainer.metric not in ("accuracy", "rmse") and (why := trainer.store.facts().get("metric_why")):
            self.screen.say_once(f"metric {why}")
        self.screen.say_once(f"engine {trainer.choice.name}: {trainer.store.facts()['engine_why']}")
        name, rounds = trainer.recipe["method"]["name"], trainer.recipe.train.rounds
        if self.screen.live:
            self.bar = self.screen.live.add_task(name, total=rounds, completed=self.first, scores="")
        elif not self.screen.quiet:
            again = f", continued after round {self.first}" if self.first else ""
            clients = len(trainer.federated.clients_data)
            engine = f"{trainer.choice.name} engine"
            say(f"{name}: {clients} clients, {rounds} rounds, {engine}{again}")

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        if trainer.refusals and not self.refused:
            self.refused = True
            self.screen.say_once(f"{trainer.refusals[0]} (all such replies are among the run's events)")
        for said in trainer.said:
            self.screen.say_once(said)
        text = "  ".join(f"{side} {score(trainer, value)}" for side, value in sorted(trainer.latest.items()))
        if self.screen.live:
            self.screen.live.update(self.bar, completed=trainer.number + 1, scores=text)
        elif not self.screen.quiet and trainer.over():
            took = time.monotonic() - self.began_at
            say(f"  round {trainer.number + 1}: {text} (validation), {took:.1f} s")

    def should_stop(self) -> bool:
        return False


def score(trainer: Trainer, value: float) -> str:
    shares = ("accuracy", "balanced")
    name = trainer.metric_name if trainer.round_by == trainer.metric else trainer.round_by
    return f"{100 * value:.1f} %" if name in shares else f"{function_name(name)} {value:.4g}"
