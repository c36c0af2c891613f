"""The figures of clients: their scores, what they gain, and what they hold.

With many clients some of them are drawn, evenly spaced. Knows matplotlib and the frames of figure_data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from motet.report.figure_data import most_frequent
from motet.report.figures import (
    GREY,
    INK,
    PALETTE,
    Draw,
    Styles,
    evenly,
    in_percent,
    narrow,
    percent,
    within,
)
from motet.report.read import natural
from motet.report.terminal import named, short, unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = 200  # most dots in a row
COLUMNS = 60  # most clients with names in a figure
LEVELS = 12  # sizes of bubbles
CHANGES = {
    "better": (PALETTE[0], "^"),
    "same": (GREY, "o"),
    "worse": (PALETTE[1], "v"),
    "not known": (GREY, "x"),
}
MeanGain = tuple[float, float, float]  # and the ends of its 95 % interval, nan where unknown


# ---- scores ----


def each_client(clients: pd.DataFrame, styles: Styles, metric: str) -> Draw:
    """Every client's personal test score, a dot each, and a line at the mean; a row for each method."""
    labels = [name for name in clients.columns if name in styles]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, name in enumerate(labels):
            scores = clients[name].dropna().sort_values()
            _dots(axes, evenly(list(scores), DOTS), row, styles[name].colour, styles[name].marker)
            axes.plot([scores.mean()] * 2, [row - 0.38, row + 0.38], color=INK, linewidth=1.6,
                      solid_capstyle="butt")  # fmt: skip
        _rows(axes, labels, 18 if narrow(figure) else 34)
        axes.set(xlabel=f"test {unit(metric)} of each client's own model")
        axes.set_xlim(*within(*axes.get_xlim(), metric))
        percent(axes.xaxis, metric)

    return draw


def _dots(axes: Axes, values: Sequence[float], row: int, colour: str, marker: str) -> None:
    axes.scatter(values, [row + _jitter(i) for i in range(len(values))], s=14, c=colour, marker=marker,
                 alpha=0.75, linewidths=0, clip_on=False)  # fmt: skip


def _rows(axes: Axes, labels: Sequence[str], letters: int) -> None:
    axes.set_yticks(range(len(labels)), [short(n, letters) for n in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _jitter(i: int) -> float:
    """Apart by the golden ratio: neighbours in rank never share a height, and nothing is drawn at random."""
    return ((i * 0.618034) % 1.0 - 0.5) * 0.5


# ---- gains ----


def gains(found: pd.DataFrame, intervals: Mapping[str, MeanGain], metric: str) -> Draw:
    """A row for each method: a mark for each client by what it gains, the mean and its interval in black."""
    labels = list(intervals)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        for row, name in enumerate(labels):
            own = found[found["label"] == name].sort_values("gain")
            own = own.iloc[evenly(range(len(own)), DOTS)]
            heights = [row + _jitter(i) for i in range(len(own))]
            for change, (colour, marker) in CHANGES.items():
                some = (own["change"] == change).to_list()
                axes.scatter(own["gain"][some], [h for h, yes in zip(heights, some, strict=True) if yes], s=15,
                             c=colour, marker=marker, alpha=0.7, linewidths=0.6)  # fmt: skip
            _mean(axes, row, intervals[name])
        _rows(axes, labels, 18 if narrow(figure) else 34)
        axes.set_xlabel(f"gain over training alone, {points(metric)}")
        percent(axes.xaxis, metric)
        _key(figure, found["change"], mean=True)

    return draw


def points(metric: str) -> str:
    return f"points of {named(metric)}" if in_percent(metric) else f"{named(metric)}, positive is better"


def _mean(axes: Axes, row: int, interval: MeanGain) -> None:
    mean, low, high = interval
    axes.plot([low, high], [row, row], color=INK, linewidth=2.2, solid_capstyle="butt", zorder=4)
    axes.plot([mean], [row], marker="D", markersize=5.5, color=INK, markerfacecolor="white", zorder=5)


def _key(figure: Figure, changes: pd.Series[str], mean: bool) -> None:
    """What the marks mean, of those that are drawn."""
    from matplotlib.lines import Line2D

    drawn = [(name, *CHANGES[name]) for name in CHANGES if (changes == name).any()]
    handles = [Line2D([], [], ls="", marker=m, color=c, markersize=5, label=name) for name, c, m in drawn]
    if mean:
        handles.append(Line2D([], [], marker="D", color=INK, mfc="white", markersize=5, label="mean"))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.2, columnspacing=1.2
    )


def gains_by_size(found: pd.DataFrame, names: Sequence[str], metric: str) -> Draw:
    """What each client gains, from few training rows to many; a panel for each method."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(names), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        order = None
        for axes, name in zip(panels, names, strict=True):
            own = found[found["label"] == name].sort_values("train", kind="stable")
            own = own.iloc[evenly(range(len(own)), DOTS)].reset_index(drop=True)
            order = own if order is None else order
            _sticks(axes, own)
            axes.set_title(short(name, 60), loc="left")
            axes.set_ylabel("points gained" if in_percent(metric) else f"gain, {metric}")
            percent(axes.yaxis, metric)
        if order is not None:
            _client_ticks(panels[-1], order)
        _key(figure, found.loc[found["label"].isin(names), "change"], mean=False)

    return draw


def _sticks(axes: Axes, own: pd.DataFrame) -> None:
    size = 26 if len(own) <= COLUMNS else 9
    for change, (colour, marker) in CHANGES.items():
        some = own[own["change"] == change]
        axes.vlines(some.index, 0, some["gain"], color=colour, linewidth=1.2 if len(own) <= COLUMNS else 0.6)
        axes.scatter(some.index, some["gain"], s=size, c=colour, marker=marker, linewidths=0.6, zorder=3)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.grid(axis="x", visible=False)


def _client_ticks(axes: Axes, order: pd.DataFrame) -> None:
    axes.set_xlim(-0.7, len(order) - 0.3)
    if len(order) <= COLUMNS:
        _name_ticks(
            axes,
            [f"{_short_unit(str(c))} ({n:.0f})" for c, n in zip(order["unit"], order["train"], strict=True)],
        )
        return
    axes.set_xticks([0, len(order) - 1], [f"{n:.0f} rows" for n in order["train"].iloc[[0, -1]]])
    axes.set_xlabel("clients, from few training rows to many")


def _short_unit(unit: str) -> str:
    """A long name is cut, and its split is not."""
    client, _, split = unit.rpartition(", split ")
    return f"{short(client, 14)}, split {split}" if client else short(unit, 22)


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    size = float(axes.xaxis.label.get_fontsize())
    axes.set_xticks(
        range(len(names)), names, rotation=90, fontsize=0.89 * size if len(names) <= 30 else 0.72 * size
    )


# ---- what clients hold ----


def client_rows(rows: pd.DataFrame, classes: Sequence[str]) -> Draw:
    """Training rows by client and label, as the area of a bubble; bars of rows where the target is a number."""
    seen = {str(c): bool(s) for c, s in zip(rows["client"], rows["seen"], strict=True)}
    clients = evenly(sorted(seen, key=natural), COLUMNS)
    held = {(c, k): int(n) for c, k, n in zip(rows["client"], rows["label"], rows["rows"], strict=True)}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if rows["label"].any():
            labels = most_frequent(rows[rows["client"].isin(clients)], classes)
            _bubbles(axes, {k: [held.get((c, k), 0) for c in clients] for k in labels}, narrow(figure))
        else:
            axes.bar(range(len(clients)), [held[c, ""] for c in clients], width=0.7, color=PALETTE[0])
            axes.set(ylabel="training rows", xlim=(-0.7, len(clients) - 0.3))
            axes.grid(axis="x", visible=False)
        _name_ticks(axes, [short(c, 18) + ("" if seen[c] else " *") for c in clients])

    return draw


def _bubbles(axes: Axes, counts: dict[str, list[int]], small: bool) -> None:
    """A few sizes only: every size of its own would be a path of its own in the file."""
    largest = max(max(row) for row in counts.values()) or 1
    places = [(x, y, n) for y, row in enumerate(counts.values()) for x, n in enumerate(row) if n]
    many = len(next(iter(counts.values())))
    full = min(9.0 if small else 16.0, 560 / many)  # points across the largest bubble
    sizes = [(full * max(1, round(LEVELS * (n / largest) ** 0.5)) / LEVELS) ** 2 for _, _, n in places]
    axes.scatter(
        [p[0] for p in places], [p[1] for p in places], s=sizes, c=PALETTE[0], linewidths=0, clip_on=False
    )
    axes.set_yticks(range(len(counts)), [short(c, 18) for c in counts])
    axes.set(ylim=(len(counts) - 0.4, -0.6), xlim=(-0.7, many - 0.3), ylabel="label")
