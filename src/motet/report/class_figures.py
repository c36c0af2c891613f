"""The figures of predicted classes: confusion matrices and reliability diagrams.

Knows matplotlib and the numbers of `predicted_classes`. Does not know how they were made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report import predicted_classes as classes
from motet.report.cells import cells, named_cells
from motet.report.figure_data import sound
from motet.report.figures import GREY, INK, WIDE, Draw, Picture, Styles, narrow
from motet.report.read import ALONE, ReportedRun
from motet.report.terminal import short

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLASSES = 20  # in a confusion matrix: the most frequent ones
MOST_NUMBERS = 12  # classes, with which cells have numbers in them
PANELS = 4  # methods with a reliability diagram


# ---- confusion ----


def confusion(runs: Sequence[ReportedRun], best: str) -> list[Picture]:
    """Of the first sound run of the method that validation chose: all clients together, and the worst one."""
    run = next((r for r in sound(runs) if r.label == best), None)
    held = classes.held(run) if run else {}
    if run is None or not held:
        return []
    worst = classes.worst_client(run, held)
    found = {"all clients": classes.confusion(held.values())}
    found |= {worst: classes.confusion([held[worst]])} if worst and len(held) > 1 else {}
    total = found["all clients"].sum(1)
    kept = sorted(sorted(range(len(total)), key=lambda k: -total[k])[:MOST_CLASSES])
    names = [str(c) for c in run.facts.get("classes") or []]
    names = names if len(names) == len(total) else [str(k) for k in range(len(total))]
    caption = (
        f"Test rows of {run.label} (seed {run.seed}) by their class (rows) and by what the clients' own models took "
        "them for (columns). A shade is the share of the row's class; numbers are test rows."
    )
    caption += f" {worst} is the client with the worst score." * (len(found) > 1)
    caption += f" Only the {MOST_CLASSES} most frequent classes are drawn." * (len(total) > len(kept))
    draw = _matrices(found, kept, names)
    height = 1.0 + max(min(0.36 * len(kept), 4.2), 1.8)
    data = _cells(found, names)
    return [
        Picture("confusion", "What is taken for what", caption, draw, (WIDE, height), data, True, 2 * height)
    ]


def _cells(found: Mapping[str, Any], names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        (who, names[i], names[k], float(counts[i, k]))
        for who, counts in found.items()
        for i, k in zip(*counts.nonzero(), strict=True)
    ]
    return pd.DataFrame(rows, columns=["clients", "class", "predicted", "rows"])


def _matrices(found: Mapping[str, Any], kept: Sequence[int], names: Sequence[str]) -> Draw:
    def draw(figure: Figure) -> None:
        small, many = narrow(figure), len(found)
        panels = figure.subplots(*((many, 1) if small else (1, max(many, 2))), squeeze=False).flat
        labels = [short(names[k], 12) for k in kept]
        turned = max(map(len, labels)) > 2
        letter = float(next(iter(panels)).xaxis.label.get_fontsize())
        for axes, (who, counts) in zip(figure.axes, found.items(), strict=False):
            some = counts[list(kept)][:, list(kept)]
            shares = some / some.sum(1, keepdims=True).clip(min=1e-12)
            texts = [[f"{v:.0f}" if v else "" for v in row] for row in some]
            cells(axes, shares.tolist(), texts, 0.85 * letter if len(kept) <= MOST_NUMBERS else 0)
            named_cells(axes, labels, labels, turned)
            axes.set_title(short(who, 40), loc="left")
            axes.set(xlabel="predicted", ylabel="class")
        for axes in figure.axes[many:]:
            axes.set_visible(False)

    return draw


# ---- calibration ----


def calibration(
    runs: Sequence[ReportedRun], labels: Sequence[str], best: str, styles: Styles
) -> list[Picture]:
    """Reliability diagrams of the method that validation chose, of training alone, and of the next in the table."""
    labels = [label for label in labels if any(run.label == label for run in sound(runs))]
    first = [label for label in labels if label == best or label.split(" ")[0] == ALONE]
    shown = sorted([*first, *(x for x in labels if x not in first)][:PANELS], key=labels.index)
    held = classes.by_method(runs, shown)
    if not held:
        return []
    found = {label: classes.reliability(some) for label, some in held.items()}
    caption = (
        "How often the class that a model holds for the likeliest is right, against the probability that it gives "
        "it, with 95 % intervals: test rows of all clients together, first run of each method. Below the dotted "
        "line models are too sure, above it not sure enough. The area of a dot is its share of the rows. ECE is "
        "the mean distance from the line, in points."
    )
    left_out = len([label for label in labels if label not in shown])
    caption += f" Not drawn: {left_out} of {len(labels)} methods." * (left_out > 0)
    data = _bins(found)
    draw = _diagrams(found, styles)
    height = 2.9
    tall = 0.6 + 2.2 * math.ceil(len(found) / 2)
    name, title = "calibration", "Calibration"
    return [Picture(name, title, caption, draw, (WIDE, height), data, True, tall)]


def _bins(found: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    parts = [
        bins.assign(label=label, ece=classes.calibration_error(bins)).set_index("label").reset_index()
        for label, bins in found.items()
    ]
    return pd.concat(parts, ignore_index=True)


def _diagrams(found: Mapping[str, pd.DataFrame], styles: Styles) -> Draw:
    def draw(figure: Figure) -> None:
        small = narrow(figure)
        across = min(len(found), 2) if small else PANELS
        down = math.ceil(len(found) / across)
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        for axes, (label, bins) in zip(panels.flat, found.items(), strict=False):
            _diagram(axes, bins, styles[label].colour)
            error = 100 * classes.calibration_error(bins)
            axes.set_title(f"{short(label, 16 if small else 22)}, ECE {error:.1f}", loc="left")
        for axes in panels.flat[len(found) :]:
            axes.set_visible(False)
        for axes in panels[:, 0]:
            axes.set_ylabel("right, % of rows")
        for axes in panels.flat[max(len(found) - across, 0) : len(found)]:
            axes.set_xlabel("probability, %")
            axes.tick_params(labelbottom=True)

    return draw


def _diagram(axes: Axes, bins: pd.DataFrame, colour: str) -> None:
    share = bins["rows"] / bins["rows"].sum()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    axes.vlines(bins["confidence"], bins["low"], bins["high"], color=colour, linewidth=1.0, alpha=0.6)
    axes.plot(bins["confidence"], bins["accuracy"], color=colour, linewidth=0.8, alpha=0.4)
    axes.scatter(bins["confidence"], bins["accuracy"], s=6 + 90 * share, c=colour, edgecolors=INK,
                 linewidths=0.4, zorder=3, clip_on=False)  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
