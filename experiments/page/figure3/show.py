"""Accuracy on validation examples over the rounds, with one or two of eta, alpha and p held constant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from motet.report import figures
from motet.report.read import read

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    runs = {one.planned.row: read([one.folder])[0] for one in done if not one.failure}
    path = out / "figure3.png"
    path.write_bytes(figures.png(lambda figure: draw(figure, runs), (9.8, 3.6)))
    return [f"figure: {path}", *paired.lines(done), *paired.lines(done, "nothing")]


def draw(figure: Any, runs: dict[str, Any]) -> None:
    styles = figures.styles_of(list(runs))
    for place, side in enumerate(("global", "after_training"), 1):
        axes = figure.add_subplot(1, 2, place)
        for row, run in runs.items():
            past = run.val[run.val["side"] == side].sort_values("round")
            colour, marker, dashes = styles[row]
            axes.plot(
                past["round"],
                100 * past["score"],
                color=colour,
                marker=marker,
                linestyle=dashes,
                markevery=6,
                ms=3,
                lw=1,
                label=row,
            )
        axes.set(xlabel="round", ylabel=f"{side} accuracy, validation, %")
        low = axes.get_ylim()[1]
        axes.set_ylim(low - 25, low)
    axes.legend(title="adjusted", fontsize=7, loc="lower right")
