"""The report's pictures, as SVG text to put into a page.

Text stays text; ink takes the page's own colour, so that light and dark pages both work; the same
input gives the same bytes. One colour and marker for each method in all pictures. Knows matplotlib,
and nothing of stores or HTML pages.
"""

from __future__ import annotations

import html
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from motet.report.read import ALONE, POOLED, ReportedRun, natural
from motet.report.terminal import short, unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 9.8  # inches: the width of the page
INK = "#010203"  # becomes currentColor
PALETTE = ("#0077BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow
GREY = "#808080"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS = 200  # most dots in a row
COLUMNS, LABELS = 60, 40  # most clients and labels in a chart
LEVELS = 12  # sizes of bubbles
NAMED = 40  # most dots that are drawn with their names
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "motet", "text.parse_math": False, "axes.unicode_minus": True,
    "font.family": ["sans-serif"], "font.size": 9.0,
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial"],
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6, "axes.linewidth": 0.6,
    "legend.frameon": False, "axes.titlesize": 9.0, "figure.dpi": 72,
}  # fmt: skip
MethodStyle = tuple[str, str]  # colour, marker
Styles = dict[str, MethodStyle]  # of methods
Size = tuple[float, float]  # inches
Draw = Callable[["Figure"], None]


def styles_of(labels: Sequence[str]) -> Styles:
    """A colour and a marker for each method: references grey or ink, the others along the palette."""
    reference = {ALONE: (GREY, "o"), POOLED: (INK, "D")}
    plain = [name for name in labels if name.split(" ")[0] not in reference]
    chosen = {name: (PALETTE[i % 6], MARKERS[(i // 6) % 7]) for i, name in enumerate(plain)}
    return {name: chosen.get(name) or reference[name.split(" ")[0]] for name in labels}


# ---- the four pictures ----


def over_rounds(
    past: pd.DataFrame,
    reported: dict[str, list[int]],
    styles: Styles,
    metric: str,
    better: int,
) -> str:
    """Validation score over rounds: solid is personal, dashed is global, a mark where models are reported."""
    from matplotlib.ticker import MaxNLocator

    names = [n for n in styles if n in set(past["method"])]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name in names:
            marked = {"personal": reported.get(name, []), "global": []}
            for side, dashes in (("global", (0, (3, 2))), ("personal", "-")):
                line = past[(past["method"] == name) & (past["side"] == side)]
                if len(line):
                    _line(axes, line, styles[name], dashes, marked[side])
        axes.set(xlabel="round", ylabel=f"validation {unit(metric)}, mean over clients")
        axes.set_ylim(*_window(past, better))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _percent(axes.yaxis, metric)
        _line_legend(axes, names, styles)

    return svg(draw, (WIDE, 3.8), f"Validation {metric} over rounds for each method")


def each_client(clients: pd.DataFrame, labels: Sequence[str], styles: Styles, metric: str) -> str:
    """Every client's personal test score, a dot each (evenly spaced ranks of many), a line at the mean."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, name in enumerate(labels):
            scores = clients[name].dropna().sort_values()
            colour, marker = styles.get(name, (GREY, "o"))
            shown = evenly(list(scores), DOTS)
            axes.scatter(shown, [row + _jitter(i) for i in range(len(shown))],
                         s=16, c=colour, marker=marker, alpha=0.8, linewidths=0, clip_on=False)  # fmt: skip
            axes.plot(
                [scores.mean()] * 2, [row - 0.38, row + 0.38], color=INK, linewidth=1.6, solid_capstyle="butt"
            )
        axes.set_yticks(range(len(labels)), [short(n, 34) for n in labels])
        axes.set(xlabel=f"test {unit(metric)} of each client's own model", ylim=(len(labels) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        _percent(axes.xaxis, metric)

    about = f"Test {metric} of every client's personal model by method"
    return svg(draw, (WIDE, 0.9 + 0.42 * len(labels)), about)


def gains(clients: pd.DataFrame, names: Sequence[str], styles: Styles, metric: str, better: int) -> str:
    """What each client gains over training alone, smallest first: filled bars gain, hollow bars lose."""
    alone, order = clients.attrs["alone"], clients.sort_values("train", kind="stable")
    order = order.loc[evenly(list(order.index), DOTS)]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(names), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, names, strict=True):
            _gain_bars(axes, (order[name] - order[alone]) * better, styles[name][0])
            axes.set_title(short(name, 60), loc="left")
            axes.set_ylabel("points gained" if metric == "accuracy" else f"{metric} saved")
            _percent(axes.yaxis, metric)
        _client_ticks(panels[-1], order)

    about = f"Gain of each client over training alone, {', '.join(names)}"
    return svg(draw, (WIDE, 1.2 + 1.5 * len(names)), about)


def client_rows(run: ReportedRun) -> str:
    """Training rows by client and label, as the area of a bubble; bars of rows where the target is a number."""
    rows = run.clients.assign(key=run.clients["client"].map(natural)).sort_values("key")
    rows = rows.iloc[evenly(list(range(len(rows))), COLUMNS)]
    counts = _counts(rows, [str(c) for c in run.facts.get("classes") or []])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if counts:
            _bubbles(axes, counts)
        else:
            axes.bar(range(len(rows)), rows["train"].to_list(), width=0.7, color=PALETTE[0])
            axes.set(ylabel="training rows", xlim=(-0.7, len(rows) - 0.3))
            axes.grid(axis="x", visible=False)
        names = [
            short(str(c), 18) + ("" if seen else " *")
            for c, seen in zip(rows["client"], rows["seen"], strict=True)
        ]
        _name_ticks(axes, names)

    tall = 1.3 + 0.26 * min(len(counts), LABELS) if counts else 2.8
    return svg(draw, (WIDE, tall), "Training rows of each client" + (" and label" if counts else ""))


def groups(runs: Sequence[ReportedRun]) -> str:
    """What the server saw of clients to group them, in two principal components: a colour for each group."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(runs), squeeze=False)[0]
        for axes, run in zip(panels, runs, strict=True):
            record = run.facts["record"]
            # what all names begin with says nothing
            common = len(os.path.commonprefix(list(record["places"])))
            for client in sorted(record["places"], key=natural):
                (x, y), group = record["places"][client], int(record["groups"].get(client, -1))
                colour, marker = (PALETTE[group % 6], MARKERS[group // 6 % 7]) if group >= 0 else (GREY, "x")
                axes.scatter([x], [y], s=34, c=colour, marker=marker, linewidths=0)
                if len(record["places"]) <= NAMED:
                    axes.annotate(
                        short(client[common:], 12), (x, y), xytext=(5, -3), textcoords="offset points"
                    )
            axes.set_title(short(f"{run.label}, seed {run.seed}", 60), loc="left")
            axes.set(xlabel="first principal component", ylabel="second" if axes is panels[0] else "")

    return svg(draw, (WIDE, 4.2), "Sparsity vectors of clients in two principal components, by group")


# ---- pieces ----


def _window(past: pd.DataFrame, better: int) -> tuple[float | None, float | None]:
    """Limits that show where methods differ: the first quarter of the rounds and bad runs may be outside."""
    late = past[past["round"] >= past["round"].max() / 4]["score"] * better
    late = late[late.abs() < float("inf")]
    if not len(late):
        return None, None
    top, middle = float(late.max()), float(late.median())
    low = max(float(late.min()), top - 4 * (top - middle)) if top > middle else float(late.min())
    margin = 0.06 * (top - low) or 0.05 * abs(top) or 0.05
    ends = (low - margin) * better, (top + margin) * better
    return min(ends), max(ends)


def _line(axes: Axes, line: pd.DataFrame, style: MethodStyle, dashes: Any, reported: Sequence[int]) -> None:
    colour, marker = style
    thin = dashes != "-"
    axes.plot(line["round"], line["score"], color=colour, linestyle=dashes, linewidth=1.0 if thin else 1.6,
              alpha=0.8 if thin else 1.0)  # fmt: skip
    marked = line[line["round"].isin(reported)]
    axes.plot(marked["round"], marked["score"], linestyle="", marker=marker, markersize=7, color=colour,
              markeredgecolor=INK, markeredgewidth=0.8, zorder=5)  # fmt: skip


def _line_legend(axes: Axes, names: Sequence[str], styles: Styles) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=styles[n][0], marker=styles[n][1], markersize=5, linewidth=1.6) for n in names
    ]
    handles += [
        Line2D([], [], color=INK, linewidth=1.6),
        Line2D([], [], color=INK, linestyle=(0, (3, 2)), linewidth=1),
    ]
    texts = [*(short(n, 30) for n in names), "personal", "global"]
    axes.legend(handles, texts, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=2.2)


def _gain_bars(axes: Axes, gain: pd.Series[float], colour: str) -> None:
    places = range(len(gain))
    up = [v if v > 0 else 0.0 for v in gain]
    down = [v if v < 0 else 0.0 for v in gain]
    axes.bar(places, up, width=0.75, color=colour, linewidth=0)
    axes.bar(places, down, width=0.75, facecolor="none", edgecolor=colour, linewidth=1.0)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.grid(axis="x", visible=False)


def _client_ticks(axes: Axes, order: pd.DataFrame) -> None:
    axes.set_xlim(-0.7, len(order) - 0.3)
    if len(order) <= COLUMNS:
        _name_ticks(axes, [f"{short(str(c), 18)} ({n:.0f})" for c, n in order["train"].items()])
        return
    axes.set_xticks([0, len(order) - 1], [f"{n:.0f} rows" for n in order["train"].iloc[[0, -1]]])
    axes.set_xlabel("clients, from few training rows to many")


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=8 if len(names) <= 30 else 6.5)


def _counts(rows: pd.DataFrame, classes: Sequence[str]) -> dict[str, list[int]]:
    """{label: rows of each client}, in the order of the classes; the most frequent ones if there are many.

    Labels are the classes' numbers in the store, and their names here.
    """
    named = {str(i): name for i, name in enumerate(classes)}
    held = [{named.get(k, k): int(n) for k, n in json.loads(text or "{}").items()} for text in rows["labels"]]
    total = Counter[str]()
    for one in held:
        total.update(one)
    kept = [label for label, _ in total.most_common(LABELS)]
    places = {c: i for i, c in enumerate(classes)}
    kept.sort(key=lambda k: (places.get(k, len(places)), natural(k)))
    return {label: [one.get(label, 0) for one in held] for label in kept}


def _bubbles(axes: Axes, counts: dict[str, list[int]]) -> None:
    """A few sizes only: every size of its own would be a path of its own in the file."""
    largest = max(max(row) for row in counts.values()) or 1
    places = [(x, y, n) for y, row in enumerate(counts.values()) for x, n in enumerate(row) if n]
    many = len(next(iter(counts.values())))
    full = min(16.0, 560 / many)  # points across the largest bubble
    sizes = [(full * max(1, round(LEVELS * (n / largest) ** 0.5)) / LEVELS) ** 2 for _, _, n in places]
    axes.scatter(
        [p[0] for p in places], [p[1] for p in places], s=sizes, c=PALETTE[0], linewidths=0, clip_on=False
    )
    axes.set_yticks(range(len(counts)), [short(c, 18) for c in counts])
    axes.set(ylim=(len(counts) - 0.4, -0.6), xlim=(-0.7, many - 0.3), ylabel="label")


def _percent(axis: Any, metric: str) -> None:
    if metric == "accuracy":
        axis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}")


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _jitter(i: int) -> float:
    """Apart by the golden ratio: neighbours in rank never share a height, and nothing is drawn at random."""
    return ((i * 0.618034) % 1.0 - 0.5) * 0.5


# ---- files ----


def svg(draw: Draw, size: Size, about: str) -> str:
    """A picture to put into a page: no ground of its own, the page's ink, text as text."""
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    return _inline(_drawn(draw, size, format="svg", transparent=True, metadata=nothing).decode(), about)


def png(draw: Draw, size: Size) -> bytes:
    """The same picture as pixels on white, fit for print."""
    return _drawn(draw, size, format="png", dpi=160, metadata={"Software": None})


def _drawn(draw: Draw, size: Size, **how: Any) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own matplotlibrc does not change a report
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.savefig(out, **how)
    return out.getvalue()


def _inline(text: str, about: str) -> str:
    """Without prologue, ink as currentColor, ids that no other picture on the page has."""
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    mark = f"p{zlib.crc32(about.encode()):x}"
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{mark}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(about, quote=True)}"', 1)
