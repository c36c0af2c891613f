"""Figure 9, the confusion matrix, and Figure 10, the loss of each class's swarm by epoch; and the zero test bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from motet.data.sets import coursera_digits
from motet.runs.run import Run


def show(done: list[Any], table: dict[str, Any], out: Path) -> list[str]:
    lines, drawn = [], False
    for one in done:
        facts = Run(one.folder).facts
        if one.failure or facts["method"] != "swarm" or facts["settings"]["data"]["terms"] != "pixels":
            continue
        trail = np.array(facts["record"]["trail"])  # (records, classes, 400 weights, bias, loss)
        lines.append(f"{one.planned.row}, seed {one.planned.seed}: {accuracies(trail)}")
        if one.planned.row == "FSI" and not drawn:
            every = facts["record"]["every"]
            lines += [
                str(matrix(trail, out / "figure9.png")),
                str(losses(trail, every, out / "figure10.png")),
            ]
            drawn = True
    return lines


def scores(trail: np.ndarray, bias: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """What the best particles say of the test digits, and what these are."""
    pool = coursera_digits.load(as_published=True)
    x, y = pool.x[pool.part == 2], pool.y[pool.part == 2]
    return x @ trail[-1, :, :-2].T + bias * trail[-1, :, -2], y


def accuracies(trail: np.ndarray) -> str:
    z, y = scores(trail)
    without, _ = scores(trail, bias=False)
    right, bare = ((s.argmax(1) == y).mean() for s in (z, without))
    return f"{right:.1%} right, {bare:.1%} with the notebook's zero bias at test time"


def matrix(trail: np.ndarray, path: Path) -> Path:
    from matplotlib.figure import Figure

    z, y = scores(trail)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (y, z.argmax(1)), 1)
    figure = Figure((5.5, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues")
    for (i, j), n in np.ndenumerate(counts):
        if n:
            axes.text(
                j, i, str(n), ha="center", va="center", fontsize=8, color="white" if n > 50 else "black"
            )
    axes.set(xlabel="predicted", ylabel="digit", xticks=range(10), yticks=range(10))
    axes.set_title(f"{np.trace(counts) / counts.sum():.1%} of 1000 test digits")
    figure.savefig(path, dpi=150)
    return path


def losses(trail: np.ndarray, every: int, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure((7, 4.5), layout="constrained")
    axes = figure.subplots()
    for digit in range(10):
        # The paper sums over the 4000 training digits where we take their mean.
        axes.plot(every * np.arange(1, len(trail)), 4000 * trail[1:, digit, -1], label=f"model {digit}")
    axes.set(xlabel="epoch", ylabel="BCE, sum over 4000 digits", yscale="log")
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=150)
    return path
