"""A table of shaded cells with numbers in them, for figures such as a confusion matrix.

Few shades, so that a file stays small; cells without anything are not drawn. Knows axes of matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from motet.report.figures import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHADES = 10
DARKEST = 0.75  # letters stay readable on it, in light pages and in dark ones


def cells(axes: Axes, shares: Sequence[Sequence[float]], texts: Sequence[Sequence[str]], size: float) -> None:
    """Cells (row, column) shaded by shares from -1 to 1, the negative ones in another colour; letters of this size,
    none where it is 0."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    shaded: dict[tuple[bool, int], list[Rectangle]] = {}
    for y, row in enumerate(shares):
        for x, share in enumerate(row):
            if level := math.ceil(SHADES * min(abs(share), 1.0) - 1e-9):
                shaded.setdefault((share < 0, level), []).append(Rectangle((x - 0.5, y - 0.5), 1, 1))
            if size and texts[y][x]:
                axes.text(x, y, texts[y][x], ha="center", va="center", fontsize=size)
    for (less, level), some in sorted(shaded.items()):
        shade = DARKEST * level / SHADES
        axes.add_collection(PatchCollection(some, facecolor=PALETTE[less], alpha=shade, linewidth=0))
    axes.set(xlim=(-0.5, len(shares[0]) - 0.5), ylim=(len(shares) - 0.5, -0.5))
    axes.grid(visible=False)


def named_cells(axes: Axes, rows: Sequence[str], columns: Sequence[str], turned: bool) -> None:
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns, rotation=90 if turned else 0)
    axes.tick_params(length=0)
