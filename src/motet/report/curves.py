"""The figure of scores over rounds: a line for each method, named at its end.

Curves that cannot be told apart are drawn thin on thick, and their names say so: `= fedprox`. Knows matplotlib
and the frame of `figure_data.curves`. Does not know runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from motet.report.figures import GREY, INK, Draw, MethodStyle, Size, Styles, narrow, percent, within
from motet.report.terminal import short, unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TIE = 1e-9  # scores closer than this are the same score
CLOSE = 0.015  # of the axis: curves that are nowhere further apart look like one


@dataclass(frozen=True)
class Curve:
    """One method's scores of one side."""

    label: str
    side: str
    style: MethodStyle
    rows: pd.DataFrame  # round, score, low, high, runs; in the order of rounds
    marked: Sequence[int] = ()  # reported rounds

    @property
    def end(self) -> tuple[float, float]:
        last = self.rows.dropna(subset="score").iloc[-1]
        return float(last["round"]), float(last["score"])

    def distance(self, other: Curve) -> float:
        """The largest difference; infinite between curves of other rounds."""
        mine, theirs = (c.rows.set_index("round")["score"] for c in (self, other))
        return float((mine - theirs).abs().max()) if mine.index.equals(theirs.index) else float("inf")


def distinct(past: pd.DataFrame, styles: Styles, marked: dict[str, list[int]]) -> list[Curve]:
    """Personal curves of all methods, and global ones where they are other curves."""
    own = {label: _curve(past, label, "personal", styles, marked) for label in styles}
    shared = {label: _curve(past, label, "global", styles, marked) for label in styles}
    other = [c for c in shared.values() if c and not _same(c, own[c.label])]
    return [*(c for c in own.values() if c), *other]


def _same(shared: Curve, personal: Curve | None) -> bool:
    return personal is not None and shared.distance(personal) <= TIE


def _curve(past: pd.DataFrame, label: str, side: str, styles: Styles, marked: Any) -> Curve | None:
    rows = past[(past["label"] == label) & (past["side"] == side)].sort_values("round").reset_index(drop=True)
    if not rows["score"].notna().any():
        return None
    rows = rows.assign(round=rows["round"] + 1)  # people count rounds from 1
    ends = [r + 1 for r in marked.get(label, ())] if side == "personal" else []
    return Curve(label, side, styles[label], rows, ends)


def together(found: Sequence[Curve], close: float) -> list[list[Curve]]:
    """Curves in groups that look like one line."""
    groups: list[list[Curve]] = []
    for curve in found:
        home = next((g for g in groups if g[0].distance(curve) <= close), None)
        if home is None:
            groups.append([curve])
        else:
            home.append(curve)
    return groups


def label_of(curve: Curve, first: Curve, letters: int) -> str:
    """The curve's name, after `=` where it is equal to the first of its group, after `≈` where it looks so."""
    sign = "" if curve is first else "= " if curve.distance(first) <= TIE else "≈ "
    side = ", global" * (curve.side == "global")
    return sign + short(curve.label, letters - len(side)) + side


def look_alike(found: Sequence[Curve], limits: Size) -> list[list[Curve]]:
    """Curves in groups that look like one line between these limits."""
    return together(found, CLOSE * (limits[1] - limits[0]))


def drawing(found: Sequence[Curve], limits: Size, metric: str, constant: float | None) -> tuple[Draw, Size]:
    """What draws the figure, and its size: higher where many lines have names."""
    groups = look_alike(found, limits)

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = figure.subplots()
        axes.set_ylim(*limits)
        for group in groups:
            own = [c for c in group if c.side == "personal"]
            for i, curve in enumerate(group):
                _line(axes, curve, thicker=max(len(own) - 1 - i, 0))
        if constant is not None:
            axes.axhline(constant, color=GREY, linewidth=0.8, linestyle=":")
        if max(len(c.rows) for c in found) == 1:
            axes.set_xlim(found[0].end[0] - 1, found[0].end[0] + 1)
        axes.margins(x=0.02)
        axes.set(
            xlabel="round", ylabel=f"validation {unit(metric)}" + ", mean over clients" * (not narrow(figure))
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5 if narrow(figure) else 10))
        percent(axes.yaxis, metric)
        _labels(axes, groups, constant)

    return draw, (9.8, max(3.8, 1.0 + 0.18 * len(found)))


def window(found: Sequence[Curve], metric: str, better: int, constant: float | None) -> Size:
    """Limits that show where methods differ: the first quarter of the rounds and bad runs may be outside."""
    import pandas as pd

    past = pd.concat([c.rows for c in found])
    late = past[past["round"] >= past["round"].max() / 4]["score"] * better
    late = late[late.abs() < float("inf")]
    if not len(late):
        return within(0.0, 1.0, metric)
    top, middle = float(late.max()), float(late.median())
    low = max(float(late.min()), top - 4 * (top - middle)) if top > middle else float(late.min())
    if constant is not None:
        low = min(low, max(constant * better, top - 2 * (top - low)))
    margin = 0.06 * (top - low) or 0.05 * abs(top) or 0.05
    ends = sorted(((low - margin) * better, (top + margin) * better))
    return within(ends[0], ends[1], metric)


def _line(axes: Axes, curve: Curve, thicker: int) -> None:
    style, rows = curve.style, curve.rows
    shared = curve.side == "global"
    axes.plot(rows["round"], rows["score"], color=style.colour, linestyle=(0, (1, 1.2)) if shared else style.dashes,
              linewidth=(1.2 if shared else 1.6) + 2.2 * min(thicker, 3), alpha=0.55 if thicker else 1.0,
              solid_capstyle="butt")  # fmt: skip
    if not shared and (rows["runs"] > 1).any():
        axes.fill_between(
            rows["round"], rows["low"], rows["high"], color=style.colour, alpha=0.13, linewidth=0
        )
    marked = rows[rows["round"].isin(curve.marked) & rows["score"].between(*axes.get_ylim())]
    if len(marked):  # an empty line would count as a point at the figure's corner
        axes.plot(marked["round"], marked["score"], linestyle="", marker=style.marker, clip_on=False, zorder=5,
                  markersize=0.6 * _letter(axes), color=style.colour, markeredgecolor=INK,
                  markeredgewidth=0.7)  # fmt: skip


# ---- names at the lines' ends ----


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near to the wanted ones as can be, at least a gap apart; of equal ones the first is highest.

    >>> spread([0.5, 0.5, 0.9], 0.2, 0.0, 1.0)
    [0.6, 0.4, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    blocks: list[list[float]] = []  # sums and numbers of places that stand gap by gap
    for k, i in enumerate(order):
        blocks.append([wanted[i] - k * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, many = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + many]
    starts = [total / many for total, many in blocks for _ in range(int(many))]
    most = max(low, high - gap * (len(order) - 1))
    places = [0.0] * len(order)
    for k, i in enumerate(order):
        places[i] = round(min(max(starts[k], low), most) + k * gap, 9)
    return places


def names_at_ends(axes: Axes, ends: Mapping[tuple[str, str], float], tall: float) -> None:
    """Names of plain lines right of the axes, {(name, colour): last value}, in a panel so many points high."""
    low, high = axes.get_ylim()
    wanted = [(value - low) / (high - low) for value in ends.values()]
    places = spread(wanted, 1.25 * _letter(axes) / max(tall - 5 * _letter(axes), 40), 0.0, 1.0)
    for (name, colour), at in zip(ends, places, strict=True):
        axes.annotate(name, (1.0, at), (2, 0), "axes fraction", "offset points", va="center", color=colour)


def _labels(axes: Axes, groups: Sequence[Sequence[Curve]], constant: float | None) -> None:
    low, high = axes.get_ylim()
    named = [(curve, group[0]) for group in groups for curve in group]
    heights = [first.end[1] for _, first in named] + ([constant] if constant is not None else [])
    wanted = [(min(max(y, low), high) - low) / (high - low) for y in heights]
    places = spread(wanted, 1.25 * _letter(axes) / _tall(axes), 0.0, 1.0)
    for (curve, first), at in zip(named, places, strict=False):
        x, y = first.end
        _label(axes, curve, first, (x, min(max(y, low), high)), at)
    if constant is not None:
        axes.annotate("constant prediction", (1.0, wanted[-1]), (1.04, places[-1]), "axes fraction", "axes fraction",
                      va="center", annotation_clip=False, arrowprops=_leader(GREY))  # fmt: skip


def _letter(axes: Axes) -> float:
    """The height of a letter in points."""
    return float(axes.xaxis.label.get_fontsize())


def _tall(axes: Axes) -> float:
    """The height of the axes in points, about: the figure's without what stands below."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return max(figure.get_figheight() * 72 - 4.2 * _letter(axes), 40)


def _leader(colour: str) -> dict[str, Any]:
    return {
        "arrowstyle": "-",
        "color": colour,
        "linewidth": 0.6,
        "shrinkA": 0,
        "shrinkB": 0,
        "relpos": (0, 0.5),
    }


def _label(axes: Axes, curve: Curve, first: Curve, end: tuple[float, float], at: float) -> None:
    """A thin line from the curve's end, the method's marker, and its name."""
    from matplotlib.transforms import ScaledTranslation

    figure, size, style = axes.get_figure(root=True), _letter(axes), curve.style
    assert figure is not None
    leader = axes.annotate("", end, (1.04, at), "data", "axes fraction", annotation_clip=False,
                           arrowprops=_leader(style.colour))  # fmt: skip
    leader.set_in_layout(False)  # it ends at the name, which is
    place = axes.transAxes + ScaledTranslation(0.5 * size / 72, 0, figure.dpi_scale_trans)
    axes.plot([1.04], [at], transform=place, marker=style.marker, markersize=0.55 * size, linestyle="",
              color=style.colour, clip_on=False, fillstyle="none" if curve.side == "global" else "full")  # fmt: skip
    text = label_of(curve, first, 22 if narrow(figure) else 36)
    text += f" (to round {end[0]:.0f})" if end[0] < axes.dataLim.x1 else ""
    axes.annotate(text, (1.04, at), (1.3 * size, 0), "axes fraction", "offset points", va="center_baseline",
                  annotation_clip=False)  # fmt: skip
