"""Who relies on whom: the contribution graph of a run whose method records `trust`.

Left the graph: a node's area is what others rely on it, arrows lead from a client to those whose models it
relies on most. Right all shares: a bubble for each asker (row) and owner (column), one's own model hollow.
Knows shares of clients and matplotlib. Does not know how they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from motet.report.contributions import contributions_of, history_of
from motet.report.curves import names_at_ends
from motet.report.figures import GREY, INK, PALETTE, WIDE, Draw, Picture, evenly, styles_of
from motet.report.read import ReportedRun, natural
from motet.report.terminal import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Trust = Mapping[str, Mapping[str, float]]  # {asker: {owner: share}}
MOST = 24  # clients that are drawn
ARROWS = 3  # most of one asker
LINES = 9  # clients whose history is drawn


def picture(run: ReportedRun) -> list[Picture]:
    """The figure, or nothing for a run without trust."""
    import pandas as pd

    record = contributions_of(run.facts) or {}
    trust = record.get("trust") or {}
    if not trust:
        return []
    riders = record.get("free_riders") or []
    everyone = sorted({*trust, *(j for row in trust.values() for j in row)}, key=natural)
    names = evenly(everyone, MOST)
    caption = _caption(bool(record.get("values")))
    caption += f" Gives little and takes: {', '.join(riders)}." * bool(riders)
    caption += "".join(f" {c} is named: {why}." for c, why in sorted((record.get("named") or {}).items()))
    caption += f" {len(names)} of {len(everyone)} clients are drawn." * (len(everyone) > len(names))
    size = WIDE, max(3.4, min(0.9 + 0.26 * len(names), 6.5))
    name = f"who-relies-on-whom-{run.label}-seed{run.seed}"
    rows = [(i, j, w) for i, row in trust.items() for j, w in row.items()]
    data = pd.DataFrame(rows, columns=["client", "relies_on", "share"])
    drawn = Picture(name, "Who relies on whom", caption, drawing(trust, names), size, data)
    return [drawn, *_history(run, record)]


def _caption(measured: bool) -> str:
    if measured:
        return (
            "Whose updates lower the validation loss of whose rows (shares of Shapley values; what harms counts as "
            f"nothing). Left: the larger a client, the more others gain by it; arrows lead to the {ARROWS} that a "
            "client gains most by. Right: rows gain by columns, hollow is what a client gains by itself."
        )
    return (
        "How much each client's model relies on the model of each other one. Left: the larger a client, the more the "
        f"others rely on it; arrows lead to the {ARROWS} that a client relies on most. Right: rows rely on "
        "columns, hollow is a client's own private model."
    )


def _history(run: ReportedRun, record: Mapping[str, Any]) -> list[Picture]:
    """Contributions by round; nothing where there was one round."""
    import pandas as pd

    clients = evenly(sorted(record.get("self_importance") or {}, key=natural), LINES)
    by_round = {c: history_of(record, c) for c in clients}
    if not clients or len(by_round[clients[0]]) < 2:
        return []
    caption = "Each client's contribution in every round, in equal parts: 1 is what all would have if all were alike."
    rows = [(c, k, v) for c, values in by_round.items() for k, v in enumerate(values, 1)]
    data = pd.DataFrame(rows, columns=["client", "round", "contribution"])
    name = f"contributions-by-round-{run.label}-seed{run.seed}"
    return [Picture(name, "Contributions by round", caption, _lines(by_round), (WIDE, 3.2), data, True)]


def _lines(by_round: Mapping[str, list[float]]) -> Draw:
    styles = styles_of(list(by_round))

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        for c, values in by_round.items():
            at, how = range(1, len(values) + 1), styles[c]
            axes.plot(at, values, color=how.colour, marker=how.marker, ls=how.dashes, ms=4, lw=1.4)
        axes.axhline(1.0, color=GREY, lw=0.8)
        axes.set(xlabel="round", ylabel="contribution", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        ends = {(short(c, 14), styles[c].colour): values[-1] for c, values in by_round.items()}
        names_at_ends(axes, ends, 72 * figure.get_figheight())

    return draw


def drawing(trust: Trust, names: list[str]) -> Draw:
    got = {j: sum(trust[i].get(j, 0.0) for i in trust if i != j) for j in names}
    total = sum(got.values()) or 1.0

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
        _ring(left, trust, names, {j: v / total for j, v in got.items()})
        _matrix(right, trust, names)

    return draw


def _ring(axes: Axes, trust: Trust, names: list[str], given: Mapping[str, float]) -> None:
    at = {
        c: (math.sin(2 * math.pi * k / len(names)), math.cos(2 * math.pi * k / len(names)))
        for k, c in enumerate(names)
    }
    for i in names:
        others = {j: w for j, w in trust.get(i, {}).items() if j != i and j in at}
        for j in sorted(others, key=lambda j: -others[j])[:ARROWS]:
            how = {"arrowstyle": "-|>", "color": GREY, "lw": 0.3 + 5 * others[j], "alpha": 0.55}
            how |= {"shrinkA": 9, "shrinkB": 9, "connectionstyle": "arc3,rad=0.12"}
            axes.annotate("", at[j], at[i], arrowprops=how)
    x, y = zip(*at.values(), strict=True)
    most = max(given.values()) or 1.0
    axes.scatter(x, y, s=[20 + 380 * given[c] / most for c in names], color=PALETTE[0], zorder=3)
    for c, (x1, y1) in at.items():
        side = "center" if abs(x1) < 0.1 else "left" if x1 > 0 else "right"
        axes.annotate(short(c, 14), (1.17 * x1, 1.2 * y1), ha=side, va="center")
    axes.set(xlim=(-1.9, 1.9), ylim=(-1.35, 1.35), aspect="equal")
    axes.axis("off")


def _matrix(axes: Axes, trust: Trust, names: list[str]) -> None:
    place = {c: k for k, c in enumerate(names)}
    cells = [(i, j, w) for i in names for j, w in trust.get(i, {}).items() if j in place and w > 0]
    scale = 16_000 / max(len(names), 6) ** 2 / max((w for _, _, w in cells), default=1.0)
    for own in (False, True):
        some = [(place[j], place[i], scale * w) for i, j, w in cells if (i == j) == own]
        if some:
            x, y, sizes = zip(*some, strict=True)
            face = "none" if own else PALETTE[0]
            axes.scatter(
                x, y, s=sizes, facecolors=face, edgecolors=INK if own else PALETTE[0], linewidths=0.9
            )
    labels = [short(c, 14) for c in names]
    axes.set_xticks(range(len(names)), labels, rotation=90)
    axes.set_yticks(range(len(names)), labels)
    axes.set(xlim=(-0.7, len(names) - 0.3), ylim=(len(names) - 0.3, -0.7), aspect="equal")
    axes.set_xlabel("whose model")
    axes.set_ylabel("who relies on it")
