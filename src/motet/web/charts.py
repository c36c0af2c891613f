"""Line charts as SVG, drawn on the server, so that pages need no library and work without scripts.

Each chart is drawn twice, for wide and for narrow windows, because text in a picture shrinks with it. Colours are
classes of the style sheet, so that they follow light and dark. Every line is named at its end, and its points are
in an attribute for the script that shows values under the pointer.
Knows numbers and SVG. Does not know runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup, escape

COLOURS = 8  # classes s0 to s7 of the style sheet; the lines after them are dashed
T = TypeVar("T")
_MOST = 400  # points of a line that are drawn


@dataclass(frozen=True)
class Line:
    """One line: its name and points; a band of (x, low, high) may lie around it."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    address: str = ""  # where its name leads to, in the table of numbers


@dataclass(frozen=True)
class Frame:
    """The size of a drawing and the space around its axes, in pixels."""

    wide: int
    high: int
    css: str
    left: int = 46
    right: int = 150
    top: int = 16
    bottom: int = 40


SIZES = (Frame(1060, 320, "large"), Frame(372, 250, "narrow", left=42, right=14, bottom=38))


@dataclass(frozen=True)
class Chart:
    """Lines with the same axes."""

    title: str
    lines: Sequence[Line]
    x: str
    y: str
    as_percent: bool = False
    zero: bool = False  # whether the vertical axis begins at 0
    mark: float | None = None  # a point on the horizontal axis that is marked
    mark_name: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def svg(self) -> Markup:
        """Both drawings, or a sentence where there is nothing to draw."""
        lines = [finite(line) for line in self.lines]
        if not any(line.points for line in lines):
            return Markup('<p class="empty">Nothing to draw yet.</p>')
        return Markup("").join(draw(self, lines, frame) for frame in SIZES) + legend(lines)

    def table(self, most: int = 40) -> list[tuple[float, list[str]]]:
        """The numbers, for people who cannot see the drawing: at most so many rows."""
        at = [dict(line.points) for line in self.lines]
        xs = sorted({x for points in at for x in points})
        step = max(1, math.ceil(len(xs) / most))
        shown = [x for i, x in enumerate(reversed(xs)) if i % step == 0][::-1]
        return [(x, [self.value(p[x]) if x in p else "" for p in at]) for x in shown]

    def value(self, v: float) -> str:
        if not math.isfinite(v):
            return "–"
        return f"{100 * v:.1f} %" if self.as_percent else f"{v:.4g}"


def finite(line: Line) -> Line:
    """Points that can be drawn, at most some hundred."""
    points = [(x, y) for x, y in line.points if math.isfinite(y)]
    band = [b for b in line.band if math.isfinite(b[1]) and math.isfinite(b[2])]
    return Line(line.name, thinned(points), thinned(band), line.address)


def thinned(points: Sequence[T]) -> list[T]:
    step = max(1, math.ceil(len(points) / _MOST))
    return [p for i, p in enumerate(points) if i % step == 0 or i == len(points) - 1]


def draw(chart: Chart, lines: Sequence[Line], f: Frame) -> Markup:
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [v for n in lines for b in n.band for v in b[1:]]
    x_ticks = whole_ticks(min(xs), max(xs), 4 if f.css == "narrow" else 8)
    y_ticks = ticks(min([*ys, 0.0]) if chart.zero else min(ys), max(ys))
    if chart.as_percent and min(ys) >= 0 and max(ys) <= 1:
        y_ticks = [t for t in y_ticks if 0 <= t <= 1]  # no axis beyond 0 and 100 %
    across = scale(min(xs), max(max(xs), min(xs) + 1), f.left, f.wide - f.right)
    up = scale(y_ticks[0], y_ticks[-1], f.high - f.bottom, f.top)
    parts = [*axes(chart, x_ticks, y_ticks, across, up, f)]
    for i, line in enumerate(lines):
        parts += [drawn_band(line, i, across, up), drawn_line(chart, line, i, across, up)]
    if f.css == "large":
        parts += names_at_ends(lines, across, up, f)
    names = ", ".join(line.name for line in lines if line.points)
    said = f"{chart.title}: {names}. Its numbers are in the table below."
    return Markup('<svg class="chart {}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        f.css, f.wide, f.high, said, Markup("").join(parts)
    )


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda v: start + (v - low) / span * (end - start)


def ticks(low: float, high: float, many: int = 5) -> list[float]:
    """Round numbers from below the lowest value to above the highest.

    >>> ticks(0.12, 0.83)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if not high > low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    step = nice((high - low) / many)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def nice(step: float) -> float:
    """The next of 1, 2, 5, 10 and their powers of ten: written with one digit, so that no label is rounded.

    >>> nice(0.142), nice(7)
    (0.2, 10.0)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def whole_ticks(low: float, high: float, many: int) -> list[float]:
    """Whole numbers between two values.

    >>> whole_ticks(1, 20, 4)
    [5.0, 10.0, 15.0, 20.0]
    """
    step = max(1.0, nice(max(high - low, 1) / many))
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)] or [low]


def axes(
    chart: Chart, x_ticks: list[float], y_ticks: list[float], across: Callable[[float], float],
    up: Callable[[float], float], f: Frame,
) -> list[Markup]:  # fmt: skip
    found = []
    digits = max(
        0, -math.floor(math.log10((y_ticks[1] - y_ticks[0]) * (100 if chart.as_percent else 1)) + 1e-9)
    )
    for y in y_ticks:
        text = f"{100 * y:.{digits}f}" if chart.as_percent else f"{y:.{digits}f}"
        found.append(Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/><text class="tick" x="{}" y="{:.1f}" '
            'text-anchor="end">{}</text>'
        ).format(f.left, f.wide - f.right, up(y), up(y), f.left - 6, up(y) + 4, text))  # fmt: skip
    bottom = f.high - f.bottom
    for x in x_ticks:
        found.append(Markup(
            '<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>'
        ).format(across(x), bottom + 16, x))  # fmt: skip
    if chart.mark is not None:
        at = across(chart.mark)
        found.append(
            Markup('<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
                at, f.top, bottom
            )
        )
        if chart.mark_name:
            found.append(Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                min(max(at, f.left + 30), f.wide - f.right - 26), f.top - 2, chart.mark_name))  # fmt: skip
    middle = (f.left + f.wide - f.right) / 2
    found.append(Markup('<text class="axis" x="{}" y="{}" text-anchor="middle">{}</text>').format(
        middle, f.high - 6, chart.x))  # fmt: skip
    return found


def css(i: int) -> str:
    return f"s{i % COLOURS}" + (" dashed" if i >= COLOURS else "")


def drawn_band(line: Line, i: int, across: Callable[[float], float], up: Callable[[float], float]) -> Markup:
    if len(line.band) < 2:
        return Markup("")
    there = [f"{across(x):.1f},{up(low):.1f}" for x, low, _ in line.band]
    back = [f"{across(x):.1f},{up(high):.1f}" for x, _, high in reversed(line.band)]
    return Markup('<polygon class="band {}" points="{}"/>').format(css(i), " ".join(there + back))


def drawn_line(
    chart: Chart, line: Line, i: int, across: Callable[[float], float], up: Callable[[float], float]
) -> Markup:
    """The line, with `x|y|value` of its points for the script that shows values."""
    at = [(across(x), up(y), x, y) for x, y in line.points]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in at)
    values = ";".join(f"{x:.1f}|{y:.1f}|{chart.x} {n:g}: {chart.value(v)}" for x, y, n, v in at)
    dot = (
        Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"/>').format(css(i), *at[-1][:2])
        if at
        else ""
    )
    return Markup('<polyline class="line {}" points="{}" data-name="{}" data-points="{}"/>{}').format(
        css(i), points, line.name, values, dot
    )


def names_at_ends(
    lines: Sequence[Line], across: Callable[[float], float], up: Callable[[float], float], f: Frame
) -> list[Markup]:
    """Names at the ends of lines, moved apart where they would overlap."""
    ends = sorted((up(line.points[-1][1]), i) for i, line in enumerate(lines) if line.points)
    found, last = [], f.top - 14.0
    above = f.high - f.bottom - 13.0 * len(ends)
    for k, (y, i) in enumerate(ends):
        last = max(last + 14, min(y, above + 13.0 * (k + 1)))
        name = lines[i].name
        short = name if len(name) <= 20 else name[:19] + "…"
        found.append(Markup('<text class="name {}" x="{:.1f}" y="{:.1f}">{}<title>{}</title></text>').format(
            css(i), f.wide - f.right + 8, last + 4, short, name))  # fmt: skip
    return found


def legend(lines: Sequence[Line]) -> Markup:
    """The names under a narrow drawing, and the only place for those that a wide one has no space for."""
    items = Markup("").join(
        Markup('<li><span class="key {}"></span>{}</li>').format(css(i), escape(line.name))
        for i, line in enumerate(lines)
        if line.points
    )
    return Markup('<ul class="legend narrow" aria-hidden="true">{}</ul>').format(items)
