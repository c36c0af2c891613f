"""The figures of what a method says of its own rounds: rewards, weights, losses, step lengths.

A panel for each number of the store's table `metrics`, or for several that belong together. Lines are means over
runs, bands reach from the lowest run to the highest. Knows matplotlib and runs as they are read. Knows by their
names what the numbers mean, and draws those that it does not know, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from motet.report.curves import names_at_ends
from motet.report.figure_data import sound
from motet.report.figures import PALETTE, WIDE, Draw, Picture, narrow
from motet.report.read import ReportedRun

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6  # panels of one method
ACROSS = 3  # panels beside each other
FAR = 20  # times the least value: more is drawn on a logarithmic scale


@dataclass(frozen=True)
class Panel:
    """Numbers that share an axis: what the axis says, and what the lines are called."""

    axis: str
    lines: Mapping[str, str]  # by the metric's name
    says: str = ""  # a sentence for the caption
    log: bool = False  # where values are far apart
    beside: str = ""  # another metric without which these names mean something else


KNOWN = (
    Panel("reward", {"server": "server", "clients": "clients, mean"},
          "Rewards are inverse losses: they rise as losses fall."),
    Panel("weight p of a client", {"largest weight": "largest", "smallest weight": "smallest"},
          "The server acts by the weights p; clients choose rates and epochs at home, and do not send them."),
    Panel("clients that p amounts to", {"effective clients": ""},
          "With equal weights, p amounts to all clients; with all weight on one, to 1."),
    Panel("length of the server's step", {"step": ""}),
    Panel("loss of the best particle", {"loss": ""}, "The loss is that of training rows of all clients.",
          beside="alpha"),
    Panel("step length alpha", {"alpha": ""}, "Alpha doubles after a success and halves after failures.", log=True,
          beside="loss"),
    Panel("models on offer", {"models": ""}),
    Panel("reliance on one's own model", {"self_importance": ""}),
    Panel("clients that take and give little", {"free_riders": ""}),
)  # fmt: skip


def pictures(runs: Sequence[ReportedRun], labels: Sequence[str]) -> list[Picture]:
    """A figure for each method that says something of its rounds that changes."""
    found = []
    for label in labels:
        past = numbers([run for run in sound(runs) if run.label == label])
        if len(past) and (past.groupby("name")["value"].nunique() > 1).any():
            found.append(_picture(label, past))
    return found


def numbers(group: Sequence[ReportedRun]) -> pd.DataFrame:
    """name, round (from 1), value, low, high, runs: mean, lowest and highest run."""
    import pandas as pd

    parts = [run.metrics[["round", "name", "value"]] for run in group if len(run.metrics)]
    if not parts:
        return pd.DataFrame(columns=["name", "round", "value", "low", "high", "runs"])
    rows = pd.concat(parts, ignore_index=True).dropna(subset="value").astype({"value": float})
    each = rows.groupby(["name", "round"])["value"].agg(value="mean", low="min", high="max", runs="size")
    return each.reset_index().assign(round=lambda frame: frame["round"] + 1)


def panels_of(names: Sequence[str]) -> list[Panel]:
    """What is known first, then the rest, each in a panel of its own."""
    known = [p for p in KNOWN if set(p.lines) & set(names) and (not p.beside or p.beside in names)]
    taken = {name for panel in known for name in panel.lines}
    return [*known, *(Panel(name, {name: ""}) for name in names if name not in taken)][:MOST]


def _picture(label: str, past: pd.DataFrame) -> Picture:
    panels = panels_of(list(dict.fromkeys(past["name"])))
    caption = f"What {label} says of its rounds. " + " ".join(panel.says for panel in panels if panel.says)
    several = bool((past["runs"] > 1).any())
    caption += " Lines are means over runs, bands reach from the lowest run to the highest." * several
    down = -(-len(panels) // ACROSS)
    data = past.assign(label=label)[["label", *past.columns]]
    draw = _drawing(panels, past)
    size, tall = (WIDE, 0.3 + 2.6 * down), 0.3 + 2.4 * len(panels)
    return Picture(f"rounds-of-{label}", f"Inside {label}", caption.strip(), draw, size, data, True, tall)


def _drawing(panels: Sequence[Panel], past: pd.DataFrame) -> Draw:
    def draw(figure: Figure) -> None:
        across = 1 if narrow(figure) else min(ACROSS, len(panels))
        down = -(-len(panels) // across)
        places = figure.subplots(down, across, squeeze=False)
        for axes in places.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(places.flat, panels, strict=False):
            _lines(axes, panel, past, 72 * figure.get_figheight() / down)
        for axes in places.flat[max(len(panels) - across, 0) : len(panels)]:
            axes.set_xlabel("round")

    return draw


def _lines(axes: Axes, panel: Panel, past: pd.DataFrame, tall: float) -> None:
    """The lines of a panel that is so many points high, with their names at the ends."""
    from matplotlib.ticker import MaxNLocator

    ends = {}
    for i, (name, called) in enumerate(panel.lines.items()):
        rows = past[past["name"] == name]
        if not len(rows):
            continue
        axes.plot(rows["round"], rows["value"], color=PALETTE[i], linewidth=1.6)
        if (rows["runs"] > 1).any():
            axes.fill_between(
                rows["round"], rows["low"], rows["high"], color=PALETTE[i], alpha=0.15, linewidth=0
            )
        ends[called, PALETTE[i]] = float(rows["value"].iloc[-1])
    if panel.log:
        _far_apart(axes, past.loc[past["name"].isin(panel.lines), "low"])
    axes.set_title(panel.axis, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if len(ends) > 1:
        names_at_ends(axes, ends, tall)


def _far_apart(axes: Axes, values: pd.Series[float]) -> None:
    from matplotlib.ticker import NullFormatter

    if values.min() > 0 and values.max() > FAR * values.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
