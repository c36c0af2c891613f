"""Scores of a sample of the clients: how far the mean over the sample may be from the mean over everyone.

The sample is drawn without replacement, all clients equally likely, so the mean over it is unbiased. The interval is
Student's, with the correction for a finite population: a sample of everyone has no error of sampling.
Knows scores and counts. Does not know how the sample was drawn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from motet.report.certainty import LEVEL
from motet.report.terminal import named, score, unit

if TYPE_CHECKING:
    import pandas as pd

_FEW = 10  # clients that are listed at each end
_SHOWN = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
SIDES = ("personal", "global")


def interval(scores: np.ndarray, population: int, drawn: int | None = None) -> tuple[float, float]:
    """Of the mean over a population, from scores of clients that were drawn from it; `drawn` counts those without a
    score too.

    >>> [round(v, 3) for v in interval(np.array([1.0, 2.0, 3.0]), 9)]  # 2 ± 4.303 √(1/3 (1 - 3/9))
    [-0.028, 4.028]
    >>> interval(np.array([1.0, 2.0, 3.0]), 3)
    (2.0, 2.0)
    """
    many = len(scores)
    if many < 2:
        return math.nan, math.nan
    left_out = max(0.0, 1 - (drawn or many) / population)
    reach = float(special.stdtrit(many - 1, (1 + LEVEL) / 2)) * math.sqrt(
        scores.var(ddof=1) / many * left_out
    )
    mean = float(scores.mean())
    return mean - reach, mean + reach


def sample_of(facts: dict[str, Any], test: pd.DataFrame) -> dict[str, Any] | None:
    """How many clients of how many were scored, and the interval of each side's mean; None if everyone was."""
    if not facts.get("population"):
        return None
    found: dict[str, Any] = {"scored": int(facts["scored"]), "clients": int(facts["population"])}
    rows = test[(test["seen"] == 1) & test["side"].isin(SIDES)]
    for side, some in rows.groupby("side"):
        scores = some["score"].astype(float).dropna().to_numpy()
        low, high = interval(scores, found["clients"], found["scored"])
        found[str(side)] = {
            "mean": float(scores.mean()) if len(scores) else math.nan,
            "low": low,
            "high": high,
        }
    return found


def sample_notes(facts: dict[str, Any], test: pd.DataFrame, metric: str) -> list[str]:
    """The same in a sentence; nothing if everyone was scored."""
    found = sample_of(facts, test)
    if found is None:
        return []
    said = [
        f"{side} {score(found[side]['mean'], metric)} ({score(found[side]['low'], metric)} to "
        f"{score(found[side]['high'], metric)})"
        for side in SIDES
        if side in found
    ]
    who = f"Scored over {found['scored']:,} of {found['clients']:,} clients, drawn by the seed"
    return [f"{who}; 95 % intervals of the mean {unit(metric)} over all of them: {', '.join(said)}."]


def extremes_text(by_client: pd.DataFrame, metric: str, better: int) -> str:
    """Quantiles of scores of many clients, and the clients at both ends, for a terminal."""
    from motet.text import aligned

    column = [c for c in by_client.columns if c not in ("client", "train", "split")][-1]
    rows = by_client.dropna(subset=[column]).sort_values(column, ascending=better > 0)
    head = [f"{share:.0%}" for share in _SHOWN]
    cells = [score(float(v), metric) for v in rows[column].astype(float).quantile(list(_SHOWN))]
    lines = [f"test {named(metric)} of {len(rows):,} clients' own models, quantiles"]
    lines += aligned([head, cells], list(range(len(head))))
    for title, some in (("worst", rows[:_FEW]), ("best", rows[-_FEW:][::-1])):
        listed = [[str(r["client"]), score(r[column], metric)] for r in some.to_dict("records")]
        lines += ["", title, *aligned(listed, [1])]
    return "\n".join([*lines, "", "every client that was scored: --json"])
