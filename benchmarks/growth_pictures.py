"""Growth curves as SVG pictures and a page, from results/growth.json and results/W4.json.

Knows matplotlib and the two files. Measures nothing. The same numbers give the same files, byte by byte.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tables import steady
from whole_runs import box
from workloads import WORKS

Curve = dict[str, Any]
COLOURS = ("#1f77b4", "#d95f02", "#666666")
TITLES = {
    "parameters": ("parameters of the network", "100 clients, 21 steps each a round, dense network"),
    "rounds": ("rounds of the run", "100 clients, 21 steps each a round, logistic regression"),
    "actors": ("actors", "100 clients, 21 steps each a round, logistic regression"),
}
_MANY_TIMES = 10  # values that differ by more are drawn by their logarithm
PANELS = {
    "processor_ms": "processor, ms a round",
    "peak_mib": "peak memory, MiB",
    "folder_mib": "run folder, MiB",
}


def figure(panels: int, title: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "motet", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(1, panels, figsize=(3.4 * panels, 2.8), layout="constrained")
    drawn.suptitle(title, fontsize=9)
    return drawn, axes


def save(drawn: Any, path: Path) -> Path:
    from matplotlib import pyplot

    drawn.savefig(path, metadata={"Date": None})
    pyplot.close(drawn)
    return path


def one_curve(name: str, curve: Curve, path: Path) -> Path:
    """Time, memory and disk over one size."""
    label, title = TITLES[name]
    drawn, axes = figure(len(PANELS), title)
    sizes = [point["size"] for point in curve["points"]]
    for axis, (key, what) in zip(axes, PANELS.items(), strict=True):
        axis.plot(sizes, [point[key] for point in curve["points"]], "o-", color=COLOURS[0])
        axis.set(xlabel=label, ylabel=what)
        scale(axis)
    return save(drawn, path)


def scale(axis: Any) -> None:
    """Sizes and values by their logarithm where they differ by more than ten times; other values from zero, so that a
    curve that is nearly flat looks so. Ticks are plain numbers."""
    values = [float(v) for line in axis.lines for v in line.get_ydata()]
    low, high = min(values), max(values)
    sizes = sorted({float(v) for line in axis.lines for v in line.get_xdata()})
    if max(sizes) > _MANY_TIMES * min(sizes):
        axis.set_xscale("log")
    else:
        axis.set_xticks(sizes)
    if low > 0 and high > _MANY_TIMES * low:
        axis.set_yscale("log")
        axis.set_ylim(low / 2, high * 2)
    else:
        axis.set_ylim(0, high * 1.15)
    for one in (axis.xaxis, axis.yaxis):
        one.set_major_formatter(lambda value, _: f"{value:,.12g}")
        if one.get_scale() == "log":
            one.set_minor_formatter(lambda value, _: "")
    axis.grid(alpha=0.3)


def clients_curve(found: list[Curve], path: Path) -> Path:
    """W4 of bench.py: seconds a round and memory over clients, beside the plain loop."""
    drawn, axes = figure(2, "W1's clients, 105 steps each a round, logistic regression")
    for colour, side in zip(COLOURS, ("motet-compiled", "motet", "plain"), strict=True):
        some = [run for run in found if run["key"]["side"] == side and "error" not in run]
        some.sort(key=lambda run: WORKS[run["key"]["work"]].clients)
        sizes = [WORKS[run["key"]["work"]].clients for run in some]
        axes[0].plot(sizes, [steady(run) for run in some], "o-", color=colour, label=side)
        axes[1].plot(sizes, [run["peak_mib"] for run in some], "o-", color=colour, label=side)
    axes[0].set(xlabel="clients", ylabel="wall, s a round")
    axes[1].set(xlabel="clients", ylabel="peak memory, MiB")
    axes[1].legend(frameon=False, loc="upper left")  # of both: here the curves leave room
    for axis in axes:
        scale(axis)
    return save(drawn, path)


def table(curve: Curve, label: str) -> list[str]:
    head = [label, *PANELS.values(), "first round, ms"]
    return [
        "| " + " | ".join(head) + " |", "| ---: |" + " ---: |" * (len(head) - 1),
        *(
            f"| {point['size']:,} | {point['processor_ms']:,.1f} | {point['peak_mib']:,} | {point['folder_mib']:.2f} "
            f"| {point['first_ms']:,.0f} |"
            for point in curve["points"]
        ),
    ]  # fmt: skip


def page(curves: dict[str, Curve], clients: bool) -> str:
    lines = ["# Growth", "", "Times of curves are those of the processor; how: `benchmarks/growth.py`.", ""]
    if clients:
        lines += ["## Clients", "", "![clients](growth-clients.svg)", ""]
        lines += ["Wall time of W4; numbers and conditions are in [README.md](README.md).", ""]
    for name, curve in curves.items():
        loads = [point["load_before"] for point in curve["points"]]
        lines += [f"## {name.capitalize()}", "", f"![{name}](growth-{name}.svg)", ""]
        lines += [*table(curve, TITLES[name][0]), "", f"Written by `{curve['written_by']}`. {box(curve)}; "]
        lines[-1] += f"load before a run {min(loads)}–{max(loads)}."
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def draw(folder: Path) -> list[Path]:
    """All pictures for which there are numbers, and the page around them."""
    growth, w4 = folder / "growth.json", folder / "W4.json"
    curves = json.loads(growth.read_text())["curves"] if growth.exists() else {}
    made = [one_curve(name, curve, folder / f"growth-{name}.svg") for name, curve in curves.items()]
    if w4.exists():
        made.append(clients_curve(json.loads(w4.read_text())["runs"], folder / "growth-clients.svg"))
    (folder / "growth.md").write_text(page(curves, w4.exists()))
    return [*made, folder / "growth.md"]
