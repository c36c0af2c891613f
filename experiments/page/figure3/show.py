"""Accuracy on validation examples over the rounds, with one or two of eta, alpha and p held constant."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.report import figures
from motet.report.certainty import interval

sys.path.insert(0, str(Path(__file__).parents[1]))
import paired

if TYPE_CHECKING:
    import pandas as pd

SIDES = {"global": ("global model", 25), "after_training": ("clients' models", 7)}  # points that are shown
SAME = {"eta and alpha": "PAGE", "eta": "p and eta", "alpha": "p and alpha", "nothing": "p"}  # but for p
ADJUSTED = {  # pairs of rows that differ in one factor
    "p": [(row, without) for without, row in SAME.items()],
    "eta": [("PAGE", "p and alpha"), ("eta and alpha", "alpha"), ("p and eta", "p"), ("eta", "nothing")],
    "alpha": [("PAGE", "p and eta"), ("eta and alpha", "eta"), ("p and alpha", "p"), ("alpha", "nothing")],
}


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    path, runs = out / "figure3.png", paired.by_row(done)
    path.write_bytes(figures.png(lambda figure: draw(figure, runs), (8.4, 3.4)))
    return [f"figure: {path}", *paired.lines(done), *effects(runs)]


def effects(runs: paired.Groups) -> list[str]:
    """What adjusting one factor adds on clients' test rows: the mean of the four pairs of rows that differ in it."""
    if {*runs} < {row for pairs in ADJUSTED.values() for pair in pairs for row in pair}:
        return []
    head = "Adjusting one factor adds, points on clients' test rows, with 95 % intervals over clients:"
    return [head, *(f"  {factor:<5}  {effect(runs, pairs)}" for factor, pairs in ADJUSTED.items())]


def effect(runs: paired.Groups, pairs: list[tuple[str, str]]) -> str:
    """`global model +1.20 (…), clients' models …`"""
    found = []
    for side, (title, _) in SIDES.items():
        each = sum(scores(runs[row], side) - scores(runs[without], side) for row, without in pairs) / len(
            pairs
        )
        seeds = [seed for seed, _ in each.index]
        found.append(f"{title} {paired.shown(interval(each.to_list(), each.index.to_list(), seeds))}")
    return ", ".join(found)


def scores(group: list[Any], side: str) -> pd.Series[float]:
    """Test scores by seed and client."""
    import pandas as pd

    return pd.concat({run.seed: run.of(side) for run in group})


def draw(figure: Any, runs: paired.Groups) -> None:
    """One colour for each choice of eta and alpha; dashes where all weights are equal."""
    colours = dict(zip(SAME.values(), figures.PALETTE, strict=False))
    for place, (side, (title, reach)) in enumerate(SIDES.items(), 1):
        axes = figure.add_subplot(1, 2, place)
        for row, group in runs.items():
            past = curve(group, side)
            style = {"color": colours[SAME.get(row, row)], "linestyle": "--" if row in SAME else "-"}
            axes.plot(past.index + 1, past, lw=1.2, label=row, **style)
        axes.set(xlabel="round", ylabel="validation accuracy, %", title=title)
        top = axes.get_ylim()[1]
        axes.set_ylim(top - reach, top)
    axes.legend(title="adjusted", fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))


def curve(group: list[Any], side: str) -> pd.Series[float]:
    """Percent by round, the mean over seeds."""
    import pandas as pd

    past = pd.concat([run.val[run.val["side"] == side] for run in group])
    return 100 * past.groupby("round")["score"].mean()
