"""Curves of survival: of clients in a survey, and of test rows by the risk that their client's model gave them.

Curves are Kaplan and Meier's, with the number of rows that were still watched below each time. Knows matplotlib and
curves (survival.py). Does not know how risks were predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.report.client_outcomes import predictions
from motet.report.figures import GREY, INK, PALETTE, WIDE, Draw, Picture, Size, narrow, svg
from motet.report.read import ReportedRun
from motet.report.survey_text import Plain, ordered
from motet.report.terminal import short
from motet.survival import SurvivalCurve, survival_curve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 10  # test rows in each half, below which no curves are drawn
NAMED = len(PALETTE)  # clients whose curves have colours and names; of more, all are thin lines
TICKS = 6  # times at which rows that were still watched are counted


@dataclass(frozen=True)
class RiskHalves:
    """Test rows of all clients: those that their client's model gave the higher risks, and the others."""

    higher: SurvivalCurve
    lower: SurvivalCurve
    clients: int


# ---- test rows by predicted risk ----


def picture(runs: Sequence[ReportedRun], best: str) -> list[Picture]:
    """Of the first sound run of the method that validation chose; nothing where its predictions are not there."""
    some = [run for run in runs if not run.trouble and run.facts.get("kind") == "survival"]
    run = next((r for r in some if r.label == best), some[0] if some else None)
    halves = halved(predictions(run.folder, "personal")) if run else None
    if run is None or halves is None:
        return []
    rows, events = (
        f"{halves.higher.rows + halves.lower.rows:,}",
        f"{halves.higher.events + halves.lower.events:,}",
    )
    caption = (
        f"Test rows of {run.label} (seed {run.seed}, split {run.split}): each of {halves.clients} clients' rows is "
        f"halved at the median of the risks that its own model gave them, without a look at what happened. {rows} "
        f"rows, {events} events. Kaplan-Meier with 95 % intervals; below, rows that were still watched."
    )
    title = "Survival by predicted risk"
    return [Picture("survival-by-risk", title, caption, by_risk(halves), (WIDE, 3.8), _steps(halves), True)]


def halved(found: dict[str, Any]) -> RiskHalves | None:
    """Rows above the median risk of their client, and all others; None where either half has too few."""
    usable = {c: (y, z) for c, (y, z, *_) in found.items() if len(y) > 1 and np.isfinite(z).all()}
    above = {c: z > np.median(z) for c, (_, z) in usable.items()}
    higher = [y[above[c]] for c, (y, _) in usable.items()]
    lower = [y[~above[c]] for c, (y, _) in usable.items()]
    halves = [np.concatenate(some) if some else np.empty(0) for some in (higher, lower)]
    if min(map(len, halves)) < FEWEST:
        return None
    return RiskHalves(survival_curve(halves[0]), survival_curve(halves[1]), len(usable))


def by_risk(halves: RiskHalves) -> Draw:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        named = {"higher risk": halves.higher, "lower risk": halves.lower}
        for (name, curve), colour in zip(named.items(), (PALETTE[1], PALETTE[0]), strict=True):
            label = f"{name} ({curve.events:,} of {curve.rows:,} rows with an event)"
            axes.step(curve.times, curve.survival, where="post", color=colour, linewidth=1.8, label=label)
            axes.fill_between(
                curve.times, curve.low, curve.high, step="post", color=colour, alpha=0.15, linewidth=0
            )
        _frame(axes, max(c.times[-1] for c in named.values()))
        figure.legend(loc="outside upper left", fontsize=7 if narrow(figure) else 8.5)
        _rows_at_risk(axes, named, narrow(figure))

    return draw


def _frame(axes: Axes, last: float) -> None:
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, last)
    axes.set_ylabel("without event, in %")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")


def _rows_at_risk(axes: Axes, curves: dict[str, SurvivalCurve], small: bool) -> None:
    """A line for each curve below the axis of times."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=4 if small else TICKS))
    low, high = axes.get_xlim()
    times = [t for t in axes.get_xticks() if low <= t <= high]
    axes.set_xticks(times, ["\n".join([f"{t:g}", *_watched(curves, t)]) for t in times])
    axes.set_xlabel("time; below, rows still watched: " + ", then ".join(curves))


def _watched(curves: dict[str, SurvivalCurve], time: float) -> list[str]:
    return [f"{int(c.at_risk(np.array([time]))[0]):,}" for c in curves.values()]


def _steps(halves: RiskHalves) -> pd.DataFrame:
    """The numbers behind the picture."""
    import pandas as pd

    def one(name: str, c: SurvivalCurve) -> pd.DataFrame:
        shown = {"half": name, "time": c.times, "survival": c.survival, "low": c.low, "high": c.high}
        return pd.DataFrame(shown | {"watched": c.at_risk(c.times)})

    return pd.concat([one("higher", halves.higher), one("lower", halves.lower)], ignore_index=True)


# ---- clients of a survey ----


def survey_svg(survey: Plain) -> str:
    """Every client's curve, and that of all together; "" where targets are no times of survival."""
    if survey["kind"] != "survival" or not survey["times"]:
        return ""
    return svg(*of_clients(survey), f"Survival at each client of {survey['name']}")


def survey_caption(survey: Plain) -> str:
    many = len(survey["clients"])
    text = "Share of each client's rows without event (Kaplan-Meier, all rows); a line ends with the last watched row."
    return text + f" {many:,} clients are thin lines; the thick one is all of them." * (many > NAMED)


def of_clients(survey: Plain) -> tuple[Draw, Size]:
    clients = ordered(survey)
    few = len(clients) <= NAMED

    def draw(figure: Figure) -> None:
        axes, times = figure.subplots(), survey["times"]
        for i, client in enumerate(clients):
            _client_line(axes, times, client, PALETTE[i] if few else "")
        everyone: dict[str, Any] = {"color": GREY if few else INK, "linestyle": (0, (4, 2)), "where": "post"}
        axes.step(times, _there(survey["survival"]), label="all clients", linewidth=1.6, **everyone)
        _frame(axes, times[-1])
        axes.set_xlabel("time")
        figure.legend(loc="outside upper left", ncols=3, fontsize=8)

    return draw, (WIDE, 3.4)


def _client_line(axes: Axes, times: Sequence[float], client: Plain, colour: str) -> None:
    """A client's curve, with its name if it has a colour of its own."""
    shares = _there(client["survival"])
    if not colour:
        axes.step(times, shares, where="post", color=PALETTE[0], linewidth=0.7, alpha=0.5)
        return
    label = (
        f"{short(client['client'], 18)}, {client['counts'][1]:,} of {sum(client['counts']):,} with an event"
    )
    axes.step(times, shares, where="post", color=colour, linewidth=1.6, label=label)


def _there(values: Sequence[float | None]) -> list[float]:
    return [np.nan if v is None else float(v) for v in values]
