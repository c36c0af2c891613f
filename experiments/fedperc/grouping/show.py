"""Figure 5: sparsity vectors of the first seed in two principal components, by true group, before and after scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#0077BB", "#D55E00", "#009E73", "#CC79A7")
WAYS = {"as the paper compares them": {}, "Mahalanobis": {"distance": "mahalanobis"}}


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from motet.parts import clusters
    from motet.runs import experiment as experiments

    procedure = experiments.module_of(experiments.find(table["name"]), "procedure")
    files = [f for f in sorted(out.glob("*-0.5-0-seed*.npz"))]
    files = [
        next(f for f in files if f.name.startswith(d))
        for d in ("cifar100-", "cifar10-")
        if any(g.name.startswith(d) for g in files)
    ]
    figure, panels = pyplot.subplots(len(files), 2, figsize=(9, 3.6 * len(files)), squeeze=False)
    for row, file in zip(panels, files, strict=True):
        kept = np.load(file)
        shares = [kept[f"layer{i}"].astype(np.float64) for i in range(3)]
        for axes, (title, variant) in zip(row, WAYS.items(), strict=True):
            rows = procedure.compared(variant, kept["who"], shares)
            (x, y), found = clusters.principal_components(rows)[0].T, clusters.kmeans(rows, 4, 0)
            for i in range(len(x)):
                axes.scatter(x[i], y[i], color=COLOURS[i * 4 // len(x)], marker="osD^"[found[i]], s=45)
            axes.set(title=f"{file.name.split('-')[0]}: {title}", xticks=[], yticks=[])
    figure.text(0.5, 0.015, "colour: the true group; marker: the group that k-means finds", ha="center")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(out / "figure5.png", dpi=110)
    pyplot.close(figure)
    return [f"figure: {out / 'figure5.png'}"]
