"""The figures of what a method gives up for what: the plane of personal and global scores, and scores against cost.

Knows matplotlib and the frames of `tradeoffs`. Does not know runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report import tradeoffs
from motet.report.figures import GREY, INK, WIDE, Draw, Picture, Styles, narrow, percent, within
from motet.report.point_names import name_points
from motet.report.read import ReportedRun
from motet.report.terminal import score, short, unit

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 24  # points with names
LETTERS = 24  # of a name
COSTS = {"seconds": "training, seconds", "mib": "sent both ways, MiB"}


# ---- personal against global ----


def plane(runs: Sequence[ReportedRun], table: pd.DataFrame, styles: Styles, metric: str) -> list[Picture]:
    """Nothing where fewer than two methods have a global model."""
    found = tradeoffs.both_sides(runs, table)
    if not len(found) or found["global"].notna().sum() < 2:
        return []
    lacking = list(found.loc[found["global"].isna(), "label"])
    caption = (
        "Test scores of both sides, mean over clients: up is better for clients on their own rows, right is better "
        "as one model for all. "
        if table.attrs["better"] > 0
        else "Test errors of both sides, mean over clients: down is better for clients on their own rows, left is "
        "better as one model for all. "
    )
    best = ", ".join(found.loc[found["front"], "label"])
    caption += (
        f"No other federated method beats these in both (Pareto front): {best}. Test rows choose nothing."
    )
    caption += " Bars are 95 % intervals over runs." * bool(found["personal_low"].notna().any())
    caption += " On the dotted line both sides are equal. What is far off stands at the edge, with its score."
    caption += f" Without a global model, at the edge: {', '.join(lacking)}." * bool(lacking)
    draw = _plane(found, styles, metric, int(table.attrs["better"]))
    return [
        Picture(
            "personal-against-global", "Personal against global", caption, draw, (WIDE, 4.6), found, True, 4.6
        )
    ]


def _plane(found: pd.DataFrame, styles: Styles, metric: str, better: int) -> Draw:
    both = found[found["global"].notna()]
    wide, tall = window(both, "global", metric, better), window(found, "personal", metric, better)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set(xlim=wide, ylim=tall)
        _front(axes, both[both["front"]])
        for row in both.to_dict("records"):
            _point(axes, row, row["global"], styles, (row["global_low"], row["global_high"]))
        axes.axline((tall[0], tall[0]), slope=1, color=GREY, linewidth=0.8, linestyle=":")
        _edge(axes, found[found["global"].isna()], styles)
        axes.set(xlabel=f"global model, test {unit(metric)}", ylabel=f"personal models, test {unit(metric)}")
        for axis in (axes.xaxis, axes.yaxis):
            percent(axis, metric)
        _names(axes, both, "global", metric)

    return draw


def window(found: pd.DataFrame, side: str, metric: str, better: int) -> tuple[float, float]:
    """Limits that show where methods differ, with their intervals: bad ones may be outside."""
    good = found[side].dropna() * better
    top, middle = float(good.max()), float(good.median())
    low = max(float(good.min()), top - 4 * (top - middle)) if top > middle else float(good.min())
    shown = found[found[side] * better >= low]
    ends = [v * better for end in ("_low", "_high") for v in shown[f"{side}{end}"].dropna()]
    low, top = min([low, *ends]), max([top, *ends])
    margin = 0.12 * (top - low) or 0.05 * abs(top) or 0.05
    limits = sorted(((low - margin) * better, (top + margin) * better))
    return within(limits[0], limits[1], metric)


def _front(axes: Axes, some: pd.DataFrame) -> None:
    some = some.sort_values("global")
    axes.plot(some["global"], some["personal"], color=INK, linewidth=1.0, alpha=0.45, zorder=2)


def _point(
    axes: Axes, row: dict[Any, Any], x: float, styles: Styles, across: tuple[float, float] | None = None
) -> None:
    """A mark with its intervals; at the edge where it would be outside."""
    style, (u, v) = styles[row["label"]], _inside(axes, x, row["personal"])
    if math.isfinite(row["personal_low"]):
        axes.plot(
            [u, u], [row["personal_low"], row["personal_high"]], color=style.colour, linewidth=0.9, alpha=0.7
        )
    if across and math.isfinite(across[0]):
        axes.plot(across, [v, v], color=style.colour, linewidth=0.9, alpha=0.7)
    axes.plot([u], [v], marker=style.marker, linestyle="", markersize=6.5, color=style.colour,
              markeredgecolor=INK, markeredgewidth=0.5, zorder=4, clip_on=False)  # fmt: skip


def _inside(axes: Axes, x: float, y: float) -> tuple[float, float]:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    return min(max(x, left), right), min(max(y, low), high)


def _edge(axes: Axes, some: pd.DataFrame, styles: Styles) -> None:
    """Methods without a global model: a mark at the left edge."""
    left = axes.get_xlim()[0]
    for row in some.to_dict("records"):
        _point(axes, row, left, styles)
        axes.annotate(
            short(row["label"], LETTERS),
            (left, row["personal"]),
            (8, 0),
            textcoords="offset points",
            va="center",
        )


def _names(axes: Axes, some: pd.DataFrame, key: str, metric: str) -> None:
    """A name beside each point, with the scores of those that are outside; of very many only those on the front."""
    if len(some) > MOST_NAMED:
        some = some[some["front"]] if "front" in some else some.head(MOST_NAMED)
    points, names = [], []
    for row in some.to_dict("records"):
        x, y = row[key], row["personal"]
        at = _inside(axes, x, y)
        out = [score(v, metric) for v, w, side in ((x, at[0], key), (y, at[1], "")) if v != w and side != "x"]
        points.append(at)
        names.append(short(row["label"], LETTERS) + f" ({', '.join(out)})" * bool(out))
    name_points(axes, points, names)


# ---- scores against cost ----


def cost(runs: Sequence[ReportedRun], table: pd.DataFrame, styles: Styles, metric: str) -> list[Picture]:
    """Nothing for a single method."""
    found = tradeoffs.costs(runs, table)
    if len(found) < 2:
        return []
    caption = (
        "Personal test score against what a run took: training time on the machine of the run, and what all "
        "clients together would send and receive. Scales are logarithmic."
    )
    caption += " Bars are 95 % intervals over runs." * bool(found["personal_low"].notna().any())
    unknown = list(found.loc[found["mib"].isna(), "label"])
    caption += f" No bytes are known of {', '.join(unknown)}." * bool(unknown)
    draw = _costs(found, styles, metric, int(table.attrs["better"]))
    return [Picture("score-against-cost", "Score against cost", caption, draw, (WIDE, 3.9), found, True, 7.6)]


def _costs(found: pd.DataFrame, styles: Styles, metric: str, better: int) -> Draw:
    tall = window(found, "personal", metric, better)

    def draw(figure: Figure) -> None:
        small = narrow(figure)
        panels = figure.subplots(2 if small else 1, 1 if small else 2, sharey=True, squeeze=False).flat
        drawn = [_panel(axes, found, key, styles, tall) for axes, key in zip(panels, COSTS, strict=True)]
        for axes, _ in drawn[: 2 if small else 1]:
            axes.set_ylabel(f"personal models, test {unit(metric)}")
            percent(axes.yaxis, metric)
        for axes, some in drawn:
            _names(axes, some, "x", metric)

    return draw


def _panel(
    axes: Axes, found: pd.DataFrame, key: str, styles: Styles, tall: tuple[float, float]
) -> tuple[Axes, pd.DataFrame]:
    """One kind of cost; what costs nothing stands left of all others."""
    some = found[found[key].notna()]
    least = some.loc[some[key] > 0, key].min() / 3
    some = some.assign(x=some[key].where(some[key] > 0, least))
    low, high = some["x"].min(), some["x"].max()
    margin = max((high / low) ** 0.14, 1.3)
    axes.set(xscale="log", xlim=(low / margin, high * margin), ylim=tall, xlabel=COSTS[key])
    for row in some.to_dict("records"):
        _point(axes, row, row["x"], styles)
    _plain_numbers(axes, least if (found[key] == 0).any() else math.nan)
    return axes, some


def _plain_numbers(axes: Axes, zero: float) -> None:
    """1, 10, 100 as people write them; `none` at the place of what costs nothing."""
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    low, high = axes.get_xlim()
    steps = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = 10 ** (math.log10(high) - math.log10(low)) < 100
    ticks = [m * 10.0**e for e in steps for m in ((1, 2, 5) if few else (1,)) if low <= m * 10.0**e <= high]
    names = {tick: f"{tick:g}" for tick in ticks if not tick <= 1.5 * zero}
    names |= {zero: "none"} if math.isfinite(zero) else {}
    axes.xaxis.set_major_locator(FixedLocator(list(names)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(names), list(names.values()))
