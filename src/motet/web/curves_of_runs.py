"""Which curves pages show of runs: validation scores, rounds in seconds and bytes, and one client among all.

Knows what readings of runs hold. Does not know pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from motet.report.terminal import named
from motet.web.charts import Chart, Line
from motet.web.run_reading import RunReading, ScoredRound
from motet.web.wording import percent_metric

_FEW = 4  # clients below which a band over clients says little
NAMES = {"personal": "personal", "global": "global", "after_training": "after training", "alone": "alone"}


def validation(run: RunReading) -> Chart:
    """The mean over clients of each side's score, round by round; around personal models the middle 80 % of clients."""
    lines = []
    for side in [s for s in run.sides() if s != "constant"]:
        curve = run.curve(side)
        band = [b for r, s in curve if (b := middle(r, s))] if side == "personal" else []
        lines.append(Line(NAMES.get(side, side), [(r + 1, s.mean) for r, s in curve], band))
    reported = run.facts.get("reported")
    name = named(run.metric) or "score"
    return Chart(
        f"Validation {name} by round", lines, "round", name, percent_metric(run.metric),
        mark=reported + 1 if isinstance(reported, int) else None, mark_name="reported",
    )  # fmt: skip


def middle(number: int, scored: ScoredRound) -> tuple[int, float, float] | None:
    found = scored.score[(scored.rows > 0) & np.isfinite(scored.score)]
    if len(found) < _FEW:
        return None
    low, high = np.quantile(found, [0.1, 0.9])
    return number + 1, float(low), float(high)


def several(runs: Sequence[tuple[str, RunReading]], side: str = "personal") -> Chart:
    """One line for each run, on the same axes."""
    metric = next((run.metric for _, run in runs if run.metric), "")
    name = named(metric) or "score"
    lines = [Line(label, [(r + 1, v) for r, v in run.mean_curve(side)]) for label, run in runs]
    title = f"Validation {name} of {side} models by round"
    return Chart(title, lines, "round", name, percent_metric(metric))


def of_client(run: RunReading, client: str) -> Chart:
    """One client's validation scores, with the mean of all clients beside them."""
    lines = []
    for side in [s for s in run.sides() if s in ("personal", "global", "alone")]:
        points = [(r + 1, s.of(client)) for r, s in run.curve(side)]
        lines.append(Line(f"{NAMES[side]}, here", points))
    lines.append(Line("personal, everybody", [(r + 1, s.mean) for r, s in run.curve("personal")]))
    title = f"Validation {named(run.metric)} of this client by round"
    return Chart(title, lines, "round", named(run.metric), percent_metric(run.metric))


def seconds(run: RunReading) -> Chart:
    """How long rounds took."""
    points = [(r[0] + 1, float(r[1])) for r in run.rounds]
    return Chart("Seconds of a round", [Line("seconds", points)], "round", "seconds", zero=True)


def said_by_method(run: RunReading, most: int = 6) -> list[Chart]:
    """What the method reports of its rounds, each on axes of its own."""
    found = []
    for name in sorted(run.metrics)[:most]:
        points = [(r + 1, v) for r, v in run.metrics[name]]
        if len(points) > 1:
            found.append(Chart(name.replace("_", " "), [Line(name, points)], "round", name))
    return found
