"""The pictures of Figures 2 to 6: our means with 95 % intervals over seeds, and the published values beside them.

Knows results of cells and published numbers. Does not know how either was made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from paper_figures import Array, Result, bounds, by_client, by_thirds, gain, importance, own, plain

BLUE, ORANGE, GREEN, GREY = "#0077BB", "#D55E00", "#009E73", "#606060"
SHARES = {"0.25": BLUE, "0.5": GREEN, "0.75": ORANGE}  # of the columns
COLOURS = {"held": BLUE, "pooled": ORANGE}
NAMES = {
    "census": "Census",
    "covertype": "Cover Type",
    "vehicle_loan": "Vehicle Loan (part), clean",
    "leaky_vehicle_loan": "Vehicle Loan (part), leak",
    "wine": "wine",
}
Results = Mapping[str, Sequence[Result]]  # by row
Expected = Mapping[str, Mapping[str, float]]


def sheet(wide: int, high: int) -> tuple[Figure, Any]:
    figure = Figure((3.1 * wide, 2.6 * high), layout="constrained")
    return figure, figure.subplots(high, wide, squeeze=False)


def saved(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path


def data_sets(results: Results) -> list[str]:
    return list(dict.fromkeys(row.partition(" ")[0] for row in results))


def of_data(results: Results, data: str) -> dict[str, Sequence[Result]]:
    """A data set's results by the setting that the figure varies."""
    return {row.partition("=")[2]: found for row, found in results.items() if row.partition(" ")[0] == data}


# ---- Figures 2 and 3 ----


def skews(
    results: Results,
    expected: Expected,
    path: Path,
    setting: str,
    measure: Callable[[Result], Array],
    below: Sequence[str],
) -> Path:
    """Gains by the setting, and below, for each data set, what goes with a measure of its clients."""
    sets = data_sets(results)
    figure, axes = sheet(len(sets), 1 + len(below))
    for column, data in enumerate(sets):
        gains(axes[0, column], of_data(results, data), row_names(expected, data, setting))
        axes[0, column].set_title(NAMES[data], fontsize=9)
        axes[0, column].set_xlabel(setting)
        some = [r for found in of_data(results, data).values() for r in found]
        for k, name in enumerate(below, 1):
            BELOW[name](axes[k, column], some, measure)
    axes[0, 0].set_ylabel("gain, balanced accuracy")
    axes[0, 0].legend(fontsize=7)
    return saved(figure, path)


def row_names(expected: Expected, data: str, setting: str) -> dict[str, Mapping[str, float]]:
    """The paper's numbers of a data set by the setting's value."""
    start = f"{data} {setting}="
    return {row.removeprefix(start): v for row, v in expected.items() if row.startswith(start)}


def gains(
    axes: Axes, by_value: Mapping[str, Sequence[Result]], paper: Mapping[str, Mapping[str, float]]
) -> None:
    values = list(by_value)
    for shift, stack in zip((-0.08, 0.08), COLOURS, strict=True):
        each = [[float(gain(plain(r), stack).mean()) for r in found] for found in by_value.values()]
        marked(axes, np.arange(len(values)) + shift, each, COLOURS[stack], f"{stack}, ours")
        known = [(k + shift, paper[v][stack]) for k, v in enumerate(values) if v in paper]
        if known:
            axes.scatter(*zip(*known, strict=True), marker="_", s=120, color=GREY, zorder=3,
                         label="paper" if stack == "held" else None)  # fmt: skip
    axes.set_xticks(range(len(values)), [f"{float(v):g}" for v in values])
    axes.set_xlim(-0.5, len(values) - 0.5)
    axes.axhline(0, color=GREY, lw=0.6)


def marked(axes: Axes, at: Array, each: Sequence[Sequence[float]], colour: str, label: str) -> None:
    """Means as points, with their intervals where there are several seeds."""
    means = np.array([np.mean(e) for e in each])
    low, high = np.array([bounds(e) for e in each]).T
    axes.errorbar(at, means, [means - low, high - means], fmt="o", ms=4, color=colour, capsize=2, label=label)


def by_gain(axes: Axes, some: Sequence[Result], measure: Callable[[Result], Array]) -> None:
    scattered(axes, some, measure, lambda r: gain(plain(r), "held"), BLUE, "gain, held-out")


def by_importance(axes: Axes, some: Sequence[Result], measure: Callable[[Result], Array]) -> None:
    scattered(axes, some, measure, lambda r: importance(plain(r)), GREEN, "importance to others")


def by_self(axes: Axes, some: Sequence[Result], measure: Callable[[Result], Array]) -> None:
    for stack in ("pooled", "held"):
        scattered(axes, some, measure, lambda r, s=stack: own(plain(r), s), COLOURS[stack], "self-importance")


def scattered(
    axes: Axes,
    some: Sequence[Result],
    measure: Callable[[Result], Array],
    of: Callable[[Result], Array],
    colour: str,
    label: str,
) -> None:
    """A point for each client, and the means of eight parts with as many clients each."""
    x, y = (np.concatenate([f(r) for r in some]) for f in (measure, of))
    axes.scatter(x, y, s=3, alpha=0.35, color=colour, lw=0)
    if np.ptp(x) > 0.02:  # clients differ
        parts = np.array_split(np.argsort(x, kind="stable"), 8)
        axes.plot([x[p].mean() for p in parts], [y[p].mean() for p in parts], color=colour, marker="s", ms=3)
    axes.set_xlim(0, max(float(x.max()) * 1.05, 0.2))
    axes.set(xlabel=measure.__doc__, ylabel=label)


def by_labels(axes: Axes, some: Sequence[Result], measure: Callable[[Result], Array]) -> None:
    """Figure 3 f: the mean trust by both clients' shares of positives, in fifths."""
    shown = axes.imshow(by_thirds(some, 5), origin="lower", extent=(0, 1, 0, 1), cmap="viridis")
    axes.figure.colorbar(shown, ax=axes, shrink=0.8)
    axes.set(xlabel="positives of the other", ylabel="positives of who trusts")


BELOW = {"gain": by_gain, "importance": by_importance, "self": by_self, "labels": by_labels}


# ---- Figures 4 and 6: vertical ----


def vertical(results: Results, expected: Expected, path: Path, stack: str, below: Sequence[str]) -> Path:
    """Gains by epsilon for each share of columns, as published and clean; below, trust by columns in common, and
    self-importance."""
    sets = data_sets(results)
    figure, axes = sheet(len(sets), 2 + len(below))
    for column, data in enumerate(sets):
        mine, paper = of_data(results, data), row_names(expected, data, "p")
        for row, public in enumerate(("all", "untested")):
            by_noise(axes[row, column], mine, public, stack, gain)
            axes[row, column].set_ylabel("gain as published" if public == "all" else "gain, clean")
        published_lines(axes[0, column], paper, stack)
        axes[0, column].set_title(NAMES[data], fontsize=9)
        for row, name in enumerate(below, 2):
            if name == "columns":
                by_jaccard(axes[row, column], mine)
            else:
                by_noise(axes[row, column], mine, "all", name.split()[0], own)
                axes[row, column].set_ylabel(f"self-importance, {name.split()[0]}")
    axes[0, 0].legend(fontsize=7, title="share p; dashed: paper", title_fontsize=7)
    return saved(figure, path)


def by_jaccard(axes: Axes, by_share: Mapping[str, Sequence[Result]]) -> None:
    """Figure 4 d: what a client trusts another by the columns that they have in common."""
    for share, found in by_share.items():
        apart = [~np.eye(len(r["clients"]["names"]), dtype=bool) for r in found]
        x = np.concatenate([np.array(r["clients"]["alike"])[p] for r, p in zip(found, apart, strict=True)])
        trust = [np.array(r["outcomes"]["all 0"]["trust_held"]) for r in found]
        y = np.concatenate([t[p] for t, p in zip(trust, apart, strict=True)])
        axes.scatter(x, y, s=3, alpha=0.4, color=SHARES.get(share, BLUE), lw=0)
    axes.set(xlabel="Jaccard similarity of columns", ylabel="importance given, held-out")


def by_noise(
    axes: Axes,
    by_share: Mapping[str, Sequence[Result]],
    public: str,
    stack: str,
    of: Callable[[Mapping[str, Any], str], Array],
) -> None:
    for share, found in by_share.items():
        keys = [n for n in found[0]["outcomes"] if n.split()[0] == public]
        line = [np.mean([of(r["outcomes"][n], stack).mean() for r in found]) for n in keys]
        axes.plot(range(len(keys)), line, marker="o", ms=3, color=SHARES.get(share, BLUE), label=share)
        axes.set_xticks(range(len(keys)), [n.split()[1] for n in keys])
    axes.axhline(0, color=GREY, lw=0.6)
    axes.set_xlabel("epsilon")


def published_lines(axes: Axes, paper: Mapping[str, Mapping[str, float]], stack: str) -> None:
    """The paper's numbers at the epsilons that the axes show."""
    shown = [text.get_text() for text in axes.get_xticklabels()]
    for share, numbers in paper.items():
        known = [numbers.get(f"{stack} all {epsilon}", np.nan) for epsilon in shown]
        axes.plot(range(len(known)), known, ls="--", lw=1, marker="_", color=SHARES.get(share, BLUE))


# ---- Figure 5 ----


def natural(results: Results, expected: Expected, path: Path) -> Path:
    """Gains of each natural client, and self-importance by data set."""
    sets = data_sets(results)
    figure, axes = sheet(len(sets), 2)
    for column, data in enumerate(sets):
        clients = by_client(results[data])
        for shift, stack in zip((-0.15, 0.15), COLOURS, strict=True):
            at = np.arange(len(clients)) + shift
            marked(
                axes[0, column], at, [c[stack] for c in clients.values()], COLOURS[stack], f"{stack}, ours"
            )
            paper = [expected.get(f"{data}: {name}", {}).get(stack, np.nan) for name in clients]
            label = "paper" if stack == "held" else None
            axes[0, column].scatter(at, paper, marker="_", s=100, color=GREY, zorder=3, label=label)
            each = [[float(v) for r in results[data] for v in own(plain(r), stack)]]
            axes[1, column].boxplot(each, positions=[0 if stack == "held" else 1], widths=0.5)
            axes[1, column].scatter(
                [0 if stack == "held" else 1], [expected.get(data, {}).get(f"{stack} self", np.nan)],
                marker="_", s=300, color=GREY, zorder=3)  # fmt: skip
        axes[0, column].set_xticks(range(len(clients)), list(clients), rotation=60, ha="right", fontsize=6)
        axes[0, column].axhline(0, color=GREY, lw=0.6)
        axes[0, column].set_title(NAMES[data], fontsize=9)
        axes[1, column].set_xticks([0, 1], ["held", "pooled"])
    axes[0, 0].set_ylabel("gain, balanced accuracy")
    axes[1, 0].set_ylabel("self-importance")
    axes[0, 0].legend(fontsize=7)
    return saved(figure, path)
