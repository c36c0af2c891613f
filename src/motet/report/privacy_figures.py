"""What privacy costs: scores against epsilon over runs that spent different budgets, and who spent how much.

Only of runs with differential privacy; runs of the same methods without it stand beside them.
Knows matplotlib and runs as they are read. Does not know how budgets are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report.figure_data import sound
from motet.report.figures import WIDE, Draw, Picture, percent, styles_of, within
from motet.report.read import ReportedRun
from motet.report.spent_privacy import UNITS
from motet.report.tables import summary
from motet.report.terminal import ABSENT, unit
from motet.report.tradeoffs import over_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS = 50  # rows of the table of one run
MOST_RUNS = 3  # private runs with a table each
_APART = 1.04  # by which methods stand beside each other, as a factor of epsilon
_FIGURES = 3  # digits of epsilon by which two budgets are the same


def price_of_privacy(runs: Sequence[ReportedRun], metric: str) -> list[Picture]:
    """Nothing where fewer than two budgets were spent."""
    found = scores_by_epsilon(runs)
    if not len(found) or found["epsilon"].dropna().nunique() < 2:
        return []
    caption = (
        "Personal test score, mean over clients, against what the client that spent most had spent at the end. A "
        "smaller epsilon protects more."
    )
    caption += " Bars are 95 % intervals over runs." * bool(found["low"].notna().any())
    caption += " Runs without differential privacy stand at the right." * bool(found["epsilon"].isna().any())
    draw = _draw(found, metric)
    return [Picture("score-against-epsilon", "What privacy costs", caption, draw, (WIDE, 3.4), found, True)]


def scores_by_epsilon(runs: Sequence[ReportedRun]) -> pd.DataFrame:
    """method, epsilon (nan: none), score with low and high, runs: of methods that have private runs."""
    import pandas as pd

    known: dict[tuple[str, float], list[float]] = {}
    for one in (summary(run) for run in sound(runs)):
        if one["personal"] is not None:
            epsilon = one["epsilon"]
            at = math.inf if epsilon is None else float(f"{epsilon:.{_FIGURES}g}")
            known.setdefault((str(one["method"]), at), []).append(float(one["personal"]))
    private = {method for method, at in known if math.isfinite(at)}
    rows = [
        (method, at if math.isfinite(at) else math.nan, *over_runs(scores), len(scores))
        for (method, at), scores in sorted(known.items())
        if method in private
    ]
    return pd.DataFrame(rows, columns=["method", "epsilon", "score", "low", "high", "runs"])


def _draw(found: pd.DataFrame, metric: str) -> Draw:
    methods = list(dict.fromkeys(found["method"]))
    styles = styles_of(methods)
    known = sorted(found["epsilon"].dropna().unique())
    right = float(known[-1]) * (known[-1] / known[0]) ** 0.25 * 1.5  # where runs without privacy stand

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for k, method in enumerate(methods):
            some, style = found[found["method"] == method], styles[method]
            at = some["epsilon"].fillna(right) * _APART ** (k - (len(methods) - 1) / 2)
            axes.plot(at, some["score"], color=style.colour, marker=style.marker, label=method)
            axes.vlines(at, some["low"], some["high"], color=style.colour, linewidth=0.9, alpha=0.7)
        epsilon_axis(axes, known, right if found["epsilon"].isna().any() else math.nan)
        axes.set(ylabel=f"personal models, test {unit(metric)}", ylim=within(*axes.get_ylim(), metric))
        percent(axes.yaxis, metric)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    return draw


def epsilon_axis(axes: Axes, known: Sequence[float], none: float) -> None:
    """Epsilon on a logarithmic scale, with the budgets that were spent; `none` is the place of no privacy, or nan."""
    axes.set_xscale("log")
    plain = math.isfinite(none)
    axes.set_xticks(
        [*known, *([none] if plain else [])], [*(f"{e:.3g}" for e in known), *(["no DP"] if plain else [])]
    )
    axes.minorticks_off()
    axes.set_xlabel("epsilon")


# ---- who spent how much ----


def budgets(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """For a page: what each client spent, a table for each private run; of many runs what each of them spent."""
    found = [(run, run.facts["privacy"]) for run in runs if run.facts.get("privacy")]
    if len(found) > MOST_RUNS:
        return [_of_runs(found)]
    return [_of_clients(run, privacy) for run, privacy in found]


def _of_clients(run: ReportedRun, privacy: Mapping[str, Any]) -> dict[str, Any]:
    clients = privacy.get("clients") or {}
    order = sorted(clients, key=lambda c: (-float(clients[c]), c))
    rounds, noise = privacy.get("rounds") or {}, privacy.get("noise_multipliers") or {}
    cut = len(order) - MOST_CLIENTS
    return {
        "title": f"What {run.label}, seed {run.seed}, spent of privacy",
        "said": _said(privacy),
        "heads": ["client", "epsilon", "rounds", "noise multiplier"],
        "rows": [
            (c, f"{clients[c]:.3g}", str(rounds.get(c, 0)), f"{noise[c]:.3g}" if c in noise else ABSENT)
            for c in order[:MOST_CLIENTS]
        ],
        "cut": f"{cut:,} clients that spent no more are not shown." if cut > 0 else "",
    }


def _of_runs(found: Sequence[tuple[ReportedRun, Mapping[str, Any]]]) -> dict[str, Any]:
    rows = []
    for run, privacy in found:
        noise = sorted((privacy.get("noise_multipliers") or {}).values())
        between = " to ".join(dict.fromkeys(f"{v:.3g}" for v in (noise[0], noise[-1]))) if noise else ABSENT
        delta = f"{privacy['delta']:.2g}" if privacy.get("delta") else ABSENT
        rows.append((run.label, str(run.seed), f"{privacy['epsilon']:.3g}", delta, between))
    return {
        "title": "What runs spent of privacy",
        "said": "Epsilon is that of the client that spent most, for "
        + "; ".join(dict.fromkeys(_unit(p) for _, p in found)) + ".",
        "heads": ["method", "seed", "epsilon", "delta", "noise multipliers"],
        "rows": rows,
        "cut": "",
    }  # fmt: skip


def _unit(privacy: Mapping[str, Any]) -> str:
    return UNITS.get(str(privacy.get("level")), str(privacy.get("level")))


def _said(privacy: Mapping[str, Any]) -> str:
    delta = f", delta {privacy['delta']:.2g}" if privacy.get("delta") else ""
    return f"Epsilon {privacy['epsilon']:.3g}{delta} for {_unit(privacy)}; noise: {privacy.get('noise')}."
