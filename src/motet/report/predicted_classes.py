"""What predicted classes and their probabilities come to: confusion matrices and calibration, of test rows.

Rows of all clients count alike, or by their weights. Knows runs as they are read, and their predictions.
Does not know how figures are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.report.client_outcomes import BINS, Predicted, predictions
from motet.report.figure_data import sound
from motet.report.read import ReportedRun
from motet.report.score_intervals import one_share

if TYPE_CHECKING:
    import pandas as pd

Counts = np.ndarray[Any, np.dtype[np.float64]]


def held(run: ReportedRun) -> dict[str, Predicted]:
    """Test rows of each client with probabilities of classes; nothing where targets are numbers."""
    if run.facts.get("kind") != "classes":
        return {}
    return {c: p for c, p in predictions(run.folder, "personal").items() if np.ndim(p.p) == 2 and len(p.y)}


def confusion(found: Iterable[Predicted]) -> Counts:
    """How many rows of a class (row) were taken for another (column)."""
    total: Counts = np.zeros((0, 0))
    for one in found:
        many = one.p.shape[1]
        total = total if total.size else np.zeros((many, many))
        weight = np.ones(len(one.y)) if one.weight is None else one.weight
        np.add.at(total, (one.y.astype(int), one.p.argmax(1)), weight)
    return total


def worst_client(run: ReportedRun, some: Iterable[str]) -> str:
    """The client with the worst personal test score, the first of equals."""
    scores = (run.of("personal") * run.better).reindex(list(some)).dropna()
    return str(scores.idxmin()) if len(scores) else ""


def reliability(found: Sequence[Predicted]) -> pd.DataFrame:
    """bin, rows, confidence, accuracy, low, high: how often the likeliest class is right, by its probability.

    Bins of equal width, as in the calibration error (ECE). `rows` are by weight.
    """
    import pandas as pd

    top = np.concatenate([one.p.max(1) for one in found])
    right = np.concatenate([one.p.argmax(1) == one.y for one in found]).astype(float)
    weight = np.concatenate([np.ones(len(o.y)) if o.weight is None else o.weight for o in found])
    bins = np.clip(np.ceil(top * BINS) - 1, 0, BINS - 1).astype(int)
    rows = []
    for k in np.unique(bins):
        w = weight[bins == k]
        confidence, accuracy = (float(v[bins == k] @ w / w.sum()) for v in (top, right))
        low, high = one_share(accuracy, float(w.sum() ** 2 / (w**2).sum()))
        rows.append((int(k) + 1, float(w.sum()), confidence, accuracy, low, high))
    return pd.DataFrame(rows, columns=["bin", "rows", "confidence", "accuracy", "low", "high"])


def calibration_error(bins: pd.DataFrame) -> float:
    """The expected calibration error: how far accuracy is from confidence, mean over rows."""
    gaps = (bins["accuracy"] - bins["confidence"]).abs()
    return float((gaps * bins["rows"]).sum() / bins["rows"].sum())


def by_method(runs: Sequence[ReportedRun], labels: Sequence[str]) -> dict[str, list[Predicted]]:
    """Test rows of each method's first sound run, in the order of the labels: further runs score the same rows."""
    first = {run.label: run for run in reversed(sound(runs))}
    found = {label: list(held(first[label]).values()) for label in labels if label in first}
    return {label: some for label, some in found.items() if some}
