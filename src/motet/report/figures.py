"""How the report's figures look, and how they become files: SVG, PDF and PNG.

One colour, marker and kind of line for each method in all figures. In a page text stays text, and ink takes the
page's own colour, so that light and dark pages both work. As files figures are black on white, as wide as a
column or a page of a paper. The same input gives the same bytes. Knows matplotlib, and nothing of stores.
"""

from __future__ import annotations

import html
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from motet.report import fonts
from motet.report.read import ALONE
from motet.report.terminal import score

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDE = 9.8  # inches: the width of the page
COLUMN, TEXT = 3.5, 7.0  # inches: a column of a paper, and its whole width
SMALL = 7.0  # points: letters in a column
INK = "#010203"  # becomes currentColor in a page, black in a file
PALETTE = (
    "#0077BB", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9",  # Okabe and Ito, without yellow
    "#6644EE", "#993322", "#88BB66",  # the farthest from these, also to colour-blind eyes
)  # fmt: skip
GREY = "#808080"
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
FORMATS = ("pdf", "svg", "png")
BOUNDS = {  # what a metric can be; a figure's axis shows nothing beyond
    "accuracy": (0.0, 1.0), "balanced": (0.0, 1.0), "auc": (0.0, 1.0), "f1": (0.0, 1.0), "ece": (0.0, 1.0),
    "cindex": (0.0, 1.0), "pinball": (0.0, None), "deviance": (0.0, None),
    "brier": (0.0, 2.0), "rmse": (0.0, None), "mae": (0.0, None), "loss": (0.0, None), "r2": (None, 1.0),
}  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "motet", "pdf.fonttype": 42, "text.parse_math": False,
    "axes.unicode_minus": True, "font.family": ["sans-serif"], "font.size": 9.0,
    "font.sans-serif": [fonts.FIRST, "Verdana", "Helvetica", "Arial"],
    "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": INK, "grid.alpha": 0.12, "grid.linewidth": 0.6, "axes.linewidth": 0.6,
    "legend.frameon": False, "axes.titlesize": 9.0, "figure.dpi": 72,
}  # fmt: skip
DIGITS = re.compile(r"(\d\.\d{3})\d+")
FIRST_FAMILIES = re.compile(r"('DejaVu Sans'[^;\"]*)")


class MethodStyle(NamedTuple):
    """What a method looks like in every figure; no two are the same."""

    colour: str
    marker: str
    dashes: Any


Styles = dict[str, MethodStyle]  # of methods
Size = tuple[float, float]  # inches
Draw = Callable[["Figure"], None]


@dataclass(frozen=True)
class Picture:
    """A figure with all that goes with it. `size` is that in a page, at 9 points."""

    name: str  # of its file
    title: str
    caption: str
    draw: Draw
    size: Size
    data: pd.DataFrame  # the numbers that are drawn
    fits_column: bool = False  # else it needs the whole width of a paper
    column_height: float = 0.0  # inches at 9 points, where it needs another height in a column

    @property
    def in_words(self) -> str:
        """What a reader who cannot see the figure is told."""
        return f"{self.title}. {self.caption}"


def styles_of(labels: Sequence[str]) -> Styles:
    """References are grey or ink, the others go along the palette and the markers; each lap has other lines.

    >>> len(set(styles_of([f"m{i}" for i in range(160)]).values()))
    160
    """  # a colour is given twice only where there are more methods than colours
    reference = {ALONE: GREY, "centralised": INK}
    laps, found = Counter[str](), {}
    for name in labels:
        kind = reference.get(name.split(" ")[0], "")
        i, laps[kind] = laps[kind], laps[kind] + 1
        lap = i if kind else i // len(PALETTE)
        colour = kind or PALETTE[i % len(PALETTE)]
        found[name] = MethodStyle(colour, MARKERS[i % len(MARKERS)], DASHES[lap % len(DASHES)])
    return found


# ---- axes ----


def in_percent(metric: str) -> bool:
    """Whether people read this metric in percent."""
    return score(1.0, metric).startswith("100")


def percent(axis: Any, metric: str) -> None:
    if in_percent(metric):
        axis.set_major_formatter(lambda value, _: f"{round(100 * value, 6):g}")


def within(low: float, high: float, metric: str) -> Size:
    """Limits of an axis, cut to what the metric can be."""
    least, most = BOUNDS.get(metric, (None, None))
    return max(low, least) if least is not None else low, min(high, most) if most is not None else high


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def narrow(figure: Figure) -> bool:
    """Whether a figure is drawn for a column."""
    return float(figure.get_figwidth()) < TEXT - 0.5


# ---- files ----


def svg(draw: Draw, size: Size, about: str, points: float = 9.0, mark: str = "") -> str:
    """A picture to put into a page: no ground of its own, the page's ink, text as text.

    `about` is its text alternative, and `mark` what no other picture of the page is called."""
    return _inline(_svg(draw, size, points, transparent=True), about, mark or about)


def png(draw: Draw, size: Size) -> bytes:
    """The same picture as pixels on white, fit for print."""
    return _drawn(draw, size, format="png", dpi=160, metadata={"Software": None})


def in_page(picture: Picture) -> str:
    return svg(picture.draw, picture.size, picture.in_words, mark=picture.name)


def in_narrow_page(picture: Picture) -> str:
    """The same for a small screen; empty where a picture does not fit."""
    if not picture.fits_column:
        return ""
    return svg(picture.draw, file_size(picture), picture.in_words, SMALL, f"{picture.name}, narrow")


def file_size(picture: Picture) -> Size:
    """As wide as a column or a page of a paper; as high as its smaller letters need."""
    height = picture.column_height or picture.size[1]
    return COLUMN if picture.fits_column else TEXT, height * SMALL / 9.0


def as_file(picture: Picture, kind: str, lacking: set[str] | None = None) -> bytes:
    """A picture for a paper, as pdf, svg or png; scripts that no font here has are added to `lacking`."""
    size = file_size(picture)
    if kind == "svg":
        return _svg(picture.draw, size, SMALL, facecolor="white").replace(INK, "#000000").encode()
    how = {"png": {"dpi": 300, "metadata": {"Software": None}}}
    nothing = dict.fromkeys(("Creator", "Producer", "CreationDate"))
    more: dict[str, Any] = how.get(kind, {"metadata": nothing})
    return _drawn(picture.draw, size, SMALL, lacking, format=kind, facecolor="white", **more)


def _svg(draw: Draw, size: Size, points: float, **how: Any) -> str:
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _drawn(draw, size, points, format="svg", metadata=nothing, **how).decode()
    return FIRST_FAMILIES.sub(fonts.STACK.replace('"', "'"), text)


def _drawn(draw: Draw, size: Size, points: float = 9.0, lacking: set[str] | None = None, **how: Any) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with matplotlib.rc_context(), fonts.no_warnings_of_glyphs():
        matplotlib.rcdefaults()  # a user's own matplotlibrc does not change a report
        matplotlib.rcParams.update(STYLE | {"font.size": points, "axes.titlesize": points})
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        if how["format"] != "svg":
            found = fonts.use_fonts_that_have(figure)
            if lacking is not None:
                lacking.update(found)
        figure.savefig(out, **how)
    return out.getvalue()


def _inline(text: str, about: str, name: str) -> str:
    """Without prologue, ink as currentColor, ids that no other picture on the page has, and no larger than need be:
    fonts are named once, and a thousandth of a point is exact enough."""
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    mark, families = f"p{zlib.crc32(name.encode()):x}", f"font-family: {fonts.STACK}"
    text = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{mark}-", text).replace(f"{families}; ", "")
    text = re.sub(r"<[^>]*>", lambda tag: DIGITS.sub(r"\1", tag[0]), text)
    said = f'role="img" aria-label="{html.escape(about, quote=True)}" style="{families}"'
    return text.replace("<svg", f"<svg {said}", 1)
