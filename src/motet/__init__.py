"""motet: a model of its own for every client, learned from all of them, while data stay at home.

>>> import motet
>>> run = motet.run(method="fedavg", data="digits", rounds=20)      # doctest: +SKIP
>>> motet.compare(["ditto", "finetune"], data="digits").table       # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Run", "compare", "run", "verify"]

if TYPE_CHECKING:
    from motet.report.comparison import Comparison
    from motet.runs.run import Run


def run(recipe: str | Path | None = None, *, out: str | Path | None = None, **settings: Any) -> Run:
    """Run one method on one federation, or go on with a run that was stopped.

    `settings` are a recipe's sections (`method={"name": "fedavg", "lr": 0.05}`), a section's name
    alone (`data="digits"`), a function or class of your own (`data=my_load`, `method=MyMethod`),
    `seed`, and for short any value of the section train (`rounds=20`).
    """
    from motet.runs import recipe as recipes
    from motet.runs.build import forget_data
    from motet.runs.run import run as go

    forget_data()
    return go(recipes.read(recipe, more=_sections(settings)), out)


def compare(
    methods: Sequence[str] = (),
    *,
    recipe: str | Path | None = None,
    seeds: Sequence[int] = (0,),
    base: str | Path = "runs",
    **settings: Any,
) -> Comparison:
    """Run several methods, and local and fedavg to measure them against, on one federation."""
    from motet.report.comparison import Comparison
    from motet.runs import compare as comparing
    from motet.runs.build import forget_data

    forget_data()
    plan = comparing.plan(recipe, (), methods or comparing.STANDARD, seeds, _sections(settings))
    return Comparison(comparing.compare(plan, base))


def verify(folder: str | Path) -> list[str]:
    """Run a finished run again; what differs, which should be nothing."""
    from motet.runs.build import forget_data
    from motet.runs.run import verify as again

    forget_data()
    return again(folder)


def _sections(settings: dict[str, Any]) -> dict[str, Any]:
    from motet.runs.sections import TrainSettings
    from motet.settings import fields_of

    for section, value in settings.items():
        if callable(value):  # a function or class of one's own is named as in a recipe
            settings[section] = f"{value.__module__}:{value.__qualname__}"
    short = {k: settings.pop(k) for k in list(settings) if k in fields_of(TrainSettings)}
    if short:
        settings["train"] = settings.get("train", {}) | short
    return settings


def __getattr__(name: str) -> Any:
    if name == "Run":
        from motet.runs.run import Run

        return Run
    raise AttributeError(f"module 'motet' has no attribute {name!r}")
