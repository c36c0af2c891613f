"""Names beside the points of a figure, where they cover no point and no other name.

Knows axes of matplotlib and places of points. Does not know what the points are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float, float, float]  # left, right, low, high
WIDTH = 0.58  # of a letter, in heights of letters
AROUND = [
    (1, 0.8),
    (1, -0.8),
    (-1, 0.8),
    (-1, -0.8),
    (1, 0),
    (-1, 0),
    (0, 1.2),
    (0, -1.2),
]  # beside bars first
FURTHER = (1.0, 2.2, 3.4)  # how far names go, in heights of letters


def name_points(axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Write a name beside each point; to a name that had to go further, a thin line leads."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # places are known once the layout is
    scale, letter = 72 / figure.dpi, float(axes.xaxis.label.get_fontsize())
    at = [(float(x) * scale, float(y) * scale) for x, y in axes.transData.transform(list(points))]
    frame = axes.get_window_extent()
    inside = (frame.x0 * scale, frame.x1 * scale, frame.y0 * scale, frame.y1 * scale)
    for name, point, (dx, dy) in zip(names, points, offsets(at, names, letter, inside), strict=True):
        far = math.hypot(dx, dy) > 1.8 * letter
        text = axes.annotate(name, point, (dx, dy), textcoords="offset points", va="center", zorder=6,
                             ha="center" if dx == 0 else "left" if dx > 0 else "right",
                             arrowprops={"arrowstyle": "-", "lw": 0.4, "alpha": 0.5} if far else None)  # fmt: skip
        text.set_in_layout(False)


def offsets(
    at: Sequence[tuple[float, float]], names: Sequence[str], letter: float, inside: Box
) -> list[tuple[float, float]]:
    """Where each name goes from its point, in points: the first place of the nearest that covers least."""
    taken: list[Box] = [(x - 3, x + 3, y - 3, y + 3) for x, y in at]
    found = []
    for (x, y), name in zip(at, names, strict=True):
        places = [(a * letter * far * 0.8, b * letter * far) for far in FURTHER for a, b in AROUND]
        boxes = [_box(x + dx, y + dy, dx, len(name) * WIDTH * letter, letter) for dx, dy in places]
        others = [p for p in at if p != (x, y)]
        costs = [
            2 * sum(_cover(box, other) for other in taken)
            + 5 * _outside(box, inside)
            + _nearer(box, (x, y), others)
            for box in boxes
        ]
        best = min(range(len(places)), key=lambda i: (costs[i], i))
        taken.append(boxes[best])
        found.append(places[best])
    return found


def _box(x: float, y: float, side: float, width: float, letter: float) -> Box:
    left = x - width / 2 if side == 0 else x if side > 0 else x - width
    return left, left + width, y - 0.6 * letter, y + 0.6 * letter


def _cover(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _outside(box: Box, inside: Box) -> bool:
    return box[0] < inside[0] or box[1] > inside[1] or box[2] < inside[2] or box[3] > inside[3]


def _nearer(box: Box, own: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Whether the name would seem to be another point's."""
    return any(_distance(box, other) <= _distance(box, own) + 2 for other in others)


def _distance(box: Box, point: tuple[float, float]) -> float:
    x, y = point
    return math.hypot(max(box[0] - x, 0, x - box[1]), max(box[2] - y, 0, y - box[3]))
