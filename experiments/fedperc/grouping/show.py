"""Figure 5, and which layers and distances find the groups: drawn from the shares of zeros that the runs have kept.

figure5.png: sparsity vectors of one seed in two principal components, by true group, before and after scaling.
layers.png: the adjusted Rand index by layer and distance, a point for each seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#0077BB", "#D55E00", "#009E73", "#CC79A7")
WAYS = {"as the paper compares them": {}, "the default": {"distance": "mahalanobis", "layers": "each"}}
DISTANCES = {"Euclidean": {}, "Mahalanobis": {"distance": "mahalanobis"}}
EXTRACTORS = {
    "cifar100-0.5-0": "CIFAR-100, untrained VGG-11",
    "cifar10-0.5-0": "CIFAR-10, untrained VGG-11",
    "cifar100-cnn-3-0.1": "CIFAR-100, CNN on its way to W_g",
    "cifar10-cnn-3-0.1": "CIFAR-10, CNN on its way to W_g",
    "cifar100-0.5-3-0.05": "CIFAR-100, VGG-11 after six epochs",
}
Panels = dict[str, dict[str, dict[str, list[float]]]]  # extractor, distance, layers: the index of each seed


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    import matplotlib

    matplotlib.use("agg")
    from motet.runs import experiment as experiments

    procedure = experiments.module_of(experiments.find(table["name"]), "procedure")
    figure5(procedure, out)
    found = indices(procedure, out)
    if found:
        layers_figure(found, out / "layers.png")
    return [*lines_of(found), f"figures: {out / 'figure5.png'}, {out / 'layers.png'}"]


def figure5(procedure: Any, out: Path) -> None:
    from matplotlib import pyplot

    from motet.parts import clusters

    first = [sorted(out.glob(f"{data}-0.5-0-seed*.npz"))[:1] for data in ("cifar100", "cifar10")]
    files = [f for some in first for f in some]
    figure, panels = pyplot.subplots(
        max(len(files), 1), 2, figsize=(9, 3.6 * max(len(files), 1)), squeeze=False
    )
    for row, file in zip(panels, files, strict=False):
        who, shares = procedure.kept_in(file)
        for axes, (title, variant) in zip(row, WAYS.items(), strict=True):
            rows = procedure.compared(variant, who, shares)
            (x, y), found = clusters.principal_components(rows)[0].T, clusters.kmeans(rows, 4, 0)
            for i in range(len(x)):
                axes.scatter(x[i], y[i], color=COLOURS[i * 4 // len(x)], marker="osD^"[found[i]], s=45)
            axes.set(title=f"{file.name.split('-')[0]}: {title}", xticks=[], yticks=[])
    figure.text(0.5, 0.015, "colour: the true group; marker: the group that k-means finds", ha="center")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(out / "figure5.png", dpi=110)
    pyplot.close(figure)


def indices(procedure: Any, out: Path) -> Panels:
    """The adjusted Rand index of every layer alone, and of the first three, by both distances."""
    found: Panels = {}
    for start, title in EXTRACTORS.items():
        for file in sorted(out.glob(f"{start}-seed*.npz")):
            who, shares = procedure.kept_in(file)
            ways = {str(i + 1): {"layers": str(i)} for i in range(len(shares))}
            ways |= {"1-3\nmean": {}, "1-3\nbeside": {"layers": "each"}}
            for distance, how in DISTANCES.items():
                for label, layers in ways.items():
                    row = found.setdefault(title, {}).setdefault(distance, {})
                    row.setdefault(label, []).append(procedure.score(how | layers, who, shares, 0))
    return found


def layers_figure(found: Panels, file: Path) -> None:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(found), 1, figsize=(8, 2.3 * len(found) + 0.5), squeeze=False, sharey=True
    )
    for axes, (title, by_distance) in zip(panels[:, 0], found.items(), strict=True):
        for shift, colour, (distance, by_layer) in zip(
            (-0.12, 0.12), COLOURS, by_distance.items(), strict=False
        ):
            for at, values in enumerate(by_layer.values()):
                axes.scatter([at + shift] * len(values), values, color=colour, s=22, alpha=0.8)
                axes.hlines(np.mean(values), at + shift - 0.1, at + shift + 0.1, color=colour, lw=2)
            axes.plot([], [], "o", color=colour, label=distance)
        axes.set(title=title, ylim=(-0.08, 1.08), ylabel="adjusted Rand index")
        axes.set_xticks(range(len(by_layer)), list(by_layer))
        axes.grid(axis="y", alpha=0.3)
    panels[0, 0].legend(loc="lower right")
    panels[-1, 0].set_xlabel("ReLU layers whose zeros are counted; a point is a seed, a line their mean")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def lines_of(found: Panels) -> list[str]:
    """Means over seeds, a line for each extractor and distance."""
    said = ["", "adjusted Rand index by ReLU layer, mean over seeds (least):"]
    for title, by_distance in found.items():
        for distance, by_layer in by_distance.items():
            cells = [
                f"{k.replace(chr(10), ' ')} {np.mean(v):.2f} ({min(v):.2f})" for k, v in by_layer.items()
            ]
            said.append(f"  {title}, {distance}: {', '.join(cells)}")
    return said
