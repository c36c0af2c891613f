"""What the experiments with Boston share: many settings in two runs, and the errors of particles on both sets of rows.

A run has many settings side by side (batch.py), and two runs keep two cores busy. Every second setting is in the
second run, so that each run has some of the settings that converge early.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from motet.data.sets import boston
from motet.runs import experiment as experiments
from motet.runs import recipe as recipes
from motet.runs.run import Run

Settings = dict[str, Any]
RUNS = 2
ROOT = Path(__file__).parents[2]  # runs must find experiments.swarm.batch, wherever they are started


def perform(
    settings: Settings, lists: dict[str, Sequence[Any]], out: Path, jobs: int, say: Callable[[str], None]
) -> list[Settings]:
    """Run all settings, of which `lists` have a value each; for each of them what its swarms found."""
    make_importable(ROOT)
    shared = {k: settings[k] for k in ("data", "net", "method", "train", "engine", "save")}
    many, (seed, *_) = len(next(iter(lists.values()))), settings["seeds"]
    planned = []
    for i in range(min(RUNS, many)):
        mine = {k: list(v[i::RUNS]) for k, v in lists.items()}
        recipe = recipes.check(experiments.seeded(shared | {"method": shared["method"] | mine}, seed))
        planned.append(experiments.Planned(f"part {i + 1} of {many} settings", seed, recipe))
    done = experiments.perform(planned, out, jobs, lambda d: say(f"  {d.planned.row}: {d.failure or 'done'}"))
    if failures := [d.failure for d in done if d.failure]:
        raise recipes.RecipeError(failures[0])
    runs = [found(d.folder) for d in done]
    return [runs[i % RUNS][i // RUNS] for i in range(many)]


def make_importable(folder: Path) -> None:
    """Modules in the folder can be imported by this process and by the runs that it starts."""
    sys.path.append(str(folder))
    given = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [given]), str(folder)])


def found(folder: Path) -> list[Settings]:
    """Of each setting of a run: loss, alpha and trail (records, swarms, numbers + 1) of its swarms."""
    facts = Run(folder).facts
    method, record = facts["settings"]["method"], facts["record"]
    trail, swarms = np.array(record["trail"]), method["swarms"]
    alphas = np.split(np.array(record["alpha"]), trail.shape[1] // swarms)
    parts = np.split(trail, trail.shape[1] // swarms, axis=1)
    seconds, epochs = facts["seconds"] / len(parts), record["every"] * np.arange(len(trail))
    return [
        {"trail": t, "alpha": a, "epochs": epochs, "seconds": seconds}
        for t, a in zip(parts, alphas, strict=True)
    ]


def shares(names: Sequence[str]) -> tuple[list[float], list[float]]:
    """w1 and w2 of rows that are named `w1=0.2 w2=0.4`."""
    pairs = [[float(word.split("=")[1]) for word in name.split()] for name in names]
    return [a for a, _ in pairs], [b for _, b in pairs]


def rows(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Examples with a column of ones, as particles have them, and prices."""
    pool = boston.load(as_published=True)
    at = slice(0, 404) if part == "train" else slice(404, None)
    return np.hstack([pool.x[at], np.ones((len(pool.x[at]), 1))]), pool.y[at]


def mse(trail: np.ndarray, part: str = "test") -> np.ndarray:
    """Of every record and swarm."""
    x, y = rows(part)
    return np.square(trail[..., :-1] @ x.T - y).mean(-1)


def least_squares() -> np.ndarray:
    x, y = rows("train")
    return np.linalg.lstsq(x, y, rcond=None)[0]


def draw(curves: dict[str, tuple[np.ndarray, np.ndarray]], path: Path, title: str, skip: int) -> Path:
    """The median of each setting's swarms by epoch and half of them around it, from the record `skip` on."""
    from matplotlib.figure import Figure

    figure = Figure((8.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (epochs, values) in curves.items():
        low, middle, high = np.quantile(values[skip:], [0.25, 0.5, 0.75], axis=1)
        (line,) = axes.plot(epochs[skip:], middle, label=name)
        axes.fill_between(epochs[skip:], low, high, color=line.get_color(), alpha=0.12, lw=0)
    axes.axhline(23.1956, color="#808080", lw=0.8, ls="--", label="least squares")
    axes.set(xlabel="epoch", ylabel="test MSE", title=title, yscale="log")
    figure.legend(fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=150)
    return path
