"""The picture of a survey: the labels and sizes of every client, and how far it is from all others.

Few classes are stacked bars, many are a matrix of shares, numbers are boxes. Shares are drawn in five
strengths of one colour, which stay readable in grey print and on dark pages. Knows
matplotlib and the plain figures of a survey (dicts and lists). Does not know how they were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from motet.report.figures import GREY, INK, PALETTE, WIDE, Draw, Size, evenly, png, svg
from motet.report.survey_text import Plain, ordered
from motet.report.terminal import short

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 100  # clients that are drawn
STACK = tuple(PALETTE[i] for i in (0, 4, 2, 5, 1, 3))  # dark and light in turn; no more classes are stacked
WRITTEN = (20, 40)  # most classes and clients of a matrix with its numbers written in
LABELS_ACROSS = 50  # most names of classes below a matrix
LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)  # shares up to which a strength reaches
STRENGTHS = (0.1, 0.25, 0.45, 0.7, 1.0)
PARTS = {"train": 0.75, "val": 0.4, "test": 0.15}  # and how strong their ink is


@dataclass(frozen=True)
class ClientRow:
    """A line of the picture: a client, or all of them together."""

    name: str
    at: float  # its place, from the top
    held: Plain
    unseen: bool = False


def svg_of(survey: Plain) -> str:
    return svg(*drawing(survey), f"Who holds what of {survey['name']}")


def png_of(survey: Plain) -> bytes:
    return png(*drawing(survey))


def drawing(survey: Plain) -> tuple[Draw, Size]:
    """What draws the picture, and its size."""
    rows = placed(survey)
    each = min(0.26, max(0.115, 9 / len(rows)))  # inches for a client

    def draw(figure: Figure) -> None:
        what, sizes, apart = figure.subplots(1, 3, sharey=True, width_ratios=(6, 2, 1.2))
        small = len(rows) > 40
        keys = labels_panel(what, survey, rows)
        keys_of_sizes = sizes_panel(sizes, rows[1:])
        distance_panel(apart, rows[1:])
        what.set_yticks([r.at for r in rows], [r.name for r in rows], fontsize=6.5 if small else 8.5)
        what.set_ylim(rows[-1].at + 0.6, -0.6)
        for axes in (what, sizes, apart):
            axes.grid(axis="y", visible=small and way(survey) == "matrix")  # helps to follow a row
            axes.tick_params(left=False, labeltop=small)
            separate(axes, rows)
        figure.legend(handles=keys + keys_of_sizes, loc="outside lower left", ncols=9, fontsize=8,
                      handlelength=1.2, columnspacing=1.2)  # fmt: skip

    return draw, (WIDE, 1.5 + each * (rows[-1].at + 1))


def placed(survey: Plain) -> list[ClientRow]:
    """All clients together, those that take part, and the unseen ones; with space in between."""
    rows, at = [ClientRow("all clients", 0.0, survey)], 1.5
    for client in evenly(ordered(survey), MOST):
        at += 0.5 * (client["unseen"] and not rows[-1].unseen and len(rows) > 1)
        name = short(client["client"], 18) + " *" * client["unseen"]
        rows.append(ClientRow(name, at, client, client["unseen"]))
        at += 1
    return rows


def separate(axes: Axes, rows: Sequence[ClientRow]) -> None:
    """Lines below all clients together, and above the unseen ones."""
    first = next((r.at for r in rows if r.unseen), None)
    for at in (0.75, *([first - 0.75] if first else [])):
        axes.axhline(at, color=INK, linewidth=0.6, alpha=0.5)


def caption(survey: Plain) -> str:
    """How to read the picture."""
    many = len(survey["clients"])
    what = {
        "stack": "Bars are shares of a client's rows "
        + ("with an event and censored" if survey["kind"] == "survival" else "by class"),
        "matrix": "The stronger a field, the larger its share of the client's rows; empty: no rows",
        "boxes": "Boxes hold the middle half of a client's targets, with a line at the median; "
        "whiskers hold nine tenths, dots are the ends; the dashed line is everyone's median",
    }[way(survey)]
    text = f"{what}. Distance is Jensen-Shannon's, from the labels of all clients: 0 alike, 1 disjoint."
    text += " A star marks clients never seen in training." * any(c["unseen"] for c in survey["clients"])
    return text + f" {MOST} of {many:,} clients are drawn, evenly by name." * (many > MOST)


def way(survey: Plain) -> str:
    if survey["kind"] == "numbers":
        return "boxes"
    return "stack" if len(survey["labels"]) <= len(STACK) else "matrix"


# ---- labels ----


def labels_panel(axes: Axes, survey: Plain, rows: Sequence[ClientRow]) -> list[Artist]:
    """What clients hold; returns the keys of the legend."""
    if way(survey) == "boxes":
        axes.set_title("targets", loc="left")
        return boxes(axes, rows)
    written = len(survey["labels"]) <= WRITTEN[0] and len(rows) <= WRITTEN[1]
    if way(survey) == "stack":
        what = "with an event and censored" if survey["kind"] == "survival" else "by class"
        axes.set_title(f"share of rows {what}, in %", loc="left")
        return stacks(axes, rows, survey["labels"], written)
    axes.set_title("rows by class, and their share" if written else "share of rows by class", loc="left")
    return matrix(axes, rows, survey["labels"], written)


def shares(row: ClientRow) -> list[float]:
    counts = row.held["counts"]
    return [n / max(sum(counts), 1) for n in counts]


def stacks(axes: Axes, rows: Sequence[ClientRow], labels: Sequence[str], written: bool) -> list[Artist]:
    from matplotlib.patches import Patch

    starts = [0.0] * len(rows)
    places = [r.at for r in rows]
    for j, colour in zip(range(len(labels)), STACK, strict=False):
        wide = [shares(r)[j] for r in rows]
        axes.barh(places, wide, left=starts, height=0.8, color=colour, edgecolor="white", linewidth=0.6)
        for at, start, share in zip(places, starts, wide, strict=True):
            if written and share >= 0.08:
                ink = "white" if j == 0 else "#111111"
                axes.text(start + share / 2, at, f"{100 * share:.0f}", color=ink, fontsize=7,
                          ha="center", va="center_baseline")  # fmt: skip
        starts = [a + b for a, b in zip(starts, wide, strict=True)]
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    return [Patch(color=c, label=short(n, 24)) for c, n in zip(STACK, labels, strict=False)]


def matrix(axes: Axes, rows: Sequence[ClientRow], labels: Sequence[str], written: bool) -> list[Artist]:
    from matplotlib.patches import Patch

    cells: list[list[tuple[float, float]]] = [[] for _ in LEVELS]
    for row in rows:
        for j, share in enumerate(shares(row)):
            if share:
                cells[level(share)].append((j, row.at))
    for strength, some in zip(STRENGTHS, cells, strict=True):
        fields(axes, some, strength, gap=0.08 if len(labels) <= WRITTEN[0] else 0.0)
    if written:
        write_counts(axes, rows)
    class_ticks(axes, labels)
    ends = zip((0.0, *LEVELS), LEVELS, STRENGTHS, strict=False)
    return [
        Patch(color=PALETTE[0], alpha=a, label=f"{100 * lo:g}–{100 * hi:g} %", linewidth=0)
        for lo, hi, a in ends
    ]


def level(share: float) -> int:
    return next(i for i, most in enumerate(LEVELS) if share <= most + 1e-12)


def fields(axes: Axes, places: Sequence[tuple[float, float]], strength: float, gap: float) -> None:
    """Squares of one strength, as a single path: thousands of paths would make a large file."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not places:
        return
    half = 0.5 - gap / 2
    corners = ((-half, -half), (half, -half), (half, half), (-half, half), (-half, -half))
    points = [(x + a, y + b) for x, y in places for a, b in corners]
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(places)
    axes.add_patch(
        PathPatch(Path(points, codes), color=PALETTE[0], alpha=strength, linewidth=0, antialiased=False)
    )


def write_counts(axes: Axes, rows: Sequence[ClientRow]) -> None:
    for row in rows:
        for j, (count, share) in enumerate(zip(row.held["counts"], shares(row), strict=True)):
            if count:
                ink = "white" if level(share) == len(LEVELS) - 1 else INK
                axes.text(j, row.at, rounded(count), color=ink, fontsize=6.5,
                          ha="center", va="center_baseline")  # fmt: skip


def rounded(count: float) -> str:
    """
    >>> rounded(9999), rounded(312_876), rounded(2_500_000)
    ('9999', '313k', '2.5M')
    """
    if count < 10_000:
        return f"{count:.0f}"
    return f"{count / 1000:.0f}k" if count < 1e6 else f"{count / 1e6:.1f}M"


def class_ticks(axes: Axes, labels: Sequence[str]) -> None:
    step = -(-len(labels) // LABELS_ACROSS)
    names = [short(n, 16) for n in labels[::step]]
    upright = len(names) > 32 or max(map(len, names)) * len(names) > 70
    axes.set_xticks(range(0, len(labels), step), names, rotation=90 if upright else 0,
                    fontsize=8.5 if len(names) <= 24 else 6.5)  # fmt: skip
    axes.tick_params(bottom=False)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.grid(axis="x", visible=False)


def boxes(axes: Axes, rows: Sequence[ClientRow]) -> list[Artist]:
    axes.axvline(rows[0].held["target"]["median"], color=INK, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.7)
    for row in rows:
        t, at = row.held["target"], row.at
        colour = GREY if row is rows[0] else PALETTE[0]
        axes.plot([t["q05"], t["q95"]], [at, at], color=colour, linewidth=1.0)
        axes.barh(at, t["q75"] - t["q25"], left=t["q25"], height=0.66, color=colour, alpha=0.45)
        axes.plot([t["median"]] * 2, [at - 0.33, at + 0.33], color=INK, linewidth=1.6, solid_capstyle="butt")
        axes.plot([t["min"], t["max"]], [at, at], ".", color=colour, markersize=3)
    return []


# ---- sizes and distances ----


def sizes_panel(axes: Axes, rows: Sequence[ClientRow]) -> list[Artist]:
    from matplotlib.patches import Patch

    starts = [0] * len(rows)
    for part, strength in PARTS.items():
        wide = [r.held[part] for r in rows]
        axes.barh([r.at for r in rows], wide, left=starts, height=0.7, color=INK, alpha=strength, linewidth=0)
        starts = [a + b for a, b in zip(starts, wide, strict=True)]
    axes.set_title("rows", loc="left")
    axes.set_xlim(0, max(starts) * 1.03)
    axes.locator_params(axis="x", nbins=4)
    axes.xaxis.set_major_formatter(lambda rows, _: rounded(rows))
    axes.text(0, 0, f" {sum(starts):,}", va="center_baseline", fontsize=8.5)
    return [Patch(color=INK, alpha=a, label=f"{part} rows", linewidth=0) for part, a in PARTS.items()]


def distance_panel(axes: Axes, rows: Sequence[ClientRow]) -> None:
    places, far = [r.at for r in rows], [r.held["distance"] for r in rows]
    axes.hlines(places, 0, far, color=INK, linewidth=1)
    axes.plot(far, places, "o", color=INK, markersize=3)
    axes.set_title("distance", loc="left")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
