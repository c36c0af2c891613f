"""What a method gives up for what: personal against global scores with their Pareto front, and scores against cost.

Numbers are means over runs. Where there are three runs or more, a mean has a 95 % interval over them. Knows runs
as they are read and the table of methods. Does not know how figures are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scipy import special

from motet.report.certainty import LEVEL
from motet.report.figure_data import sound
from motet.report.read import ReportedRun
from motet.report.tables import summary

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3  # runs of which an interval is made
MIB = 1024 * 1024


def over_runs(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and its 95 % interval by Student's t; nan where fewer than three runs say nothing of it.

    >>> [round(v, 3) for v in over_runs([0.5, 0.6, 0.7])]
    [0.6, 0.352, 0.848]
    """
    many, mean = len(values), sum(values) / len(values)
    if many < FEWEST or not math.isfinite(mean):
        return mean, math.nan, math.nan
    variance = sum((v - mean) ** 2 for v in values) / (many - 1)
    reach = float(special.stdtrit(many - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / many)
    return mean, mean - reach, mean + reach


def front(points: Mapping[str, tuple[float, float]], better: int = 1) -> list[str]:
    """The names that no other point beats: none is as good in both and better in one.

    >>> front({"a": (0.9, 0.5), "b": (0.6, 0.8), "c": (0.5, 0.7)})
    ['b', 'a']
    """
    at = {name: (better * x, better * y) for name, (x, y) in points.items()}
    beaten = {
        name
        for name, (x, y) in at.items()
        if any(u >= x and v >= y and (u, v) != (x, y) for u, v in at.values())
    }
    return sorted((name for name in at if name not in beaten), key=lambda name: at[name])


def both_sides(runs: Sequence[ReportedRun], table: pd.DataFrame) -> pd.DataFrame:
    """label, personal, global, each with low and high; runs, federated, front: test scores of both sides.

    `global` is nan for methods without a global model. The front is that of the federated methods.
    """
    import pandas as pd

    rows = []
    for row, found in _by_method(runs, table):
        sides = {side: over_runs([_number(one[side]) for one in found]) for side in ("personal", "global")}
        rows.append(_row(row, found) | _ends(sides))
    frame = pd.DataFrame(rows)
    fit = frame[frame["federated"] & frame["global"].notna()] if len(frame) else frame
    points = {r["label"]: (r["global"], r["personal"]) for r in fit.to_dict("records")}
    chosen = front(points, int(table.attrs["better"]))
    return frame.assign(front=[r["label"] in chosen for r in rows])


def costs(runs: Sequence[ReportedRun], table: pd.DataFrame) -> pd.DataFrame:
    """label, personal with low and high, seconds, mib (both ways, all clients), runs, federated."""
    import pandas as pd

    rows = []
    for row, found in _by_method(runs, table):
        sent = [(_number(one["total_up"]) + _number(one["total_down"])) / MIB for one in found]
        cost = {"seconds": _mean([_number(one["seconds"]) for one in found]), "mib": _mean(sent)}
        sides = {"personal": over_runs([_number(one["personal"]) for one in found])}
        rows.append(_row(row, found) | _ends(sides) | cost)
    return pd.DataFrame(rows)


def _by_method(
    runs: Sequence[ReportedRun], table: pd.DataFrame
) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Rows of the table, with the sound runs of each in numbers."""
    fine = [(run.label, summary(run)) for run in sound(runs)]
    found = [
        (row, [one for label, one in fine if label == row["method"]]) for row in table.to_dict("records")
    ]
    return [(dict(row), some) for row, some in found if some]


def _row(row: Mapping[str, Any], found: Sequence[Any]) -> dict[str, Any]:
    return {"label": row["method"], "runs": len(found), "federated": bool(row["federated"])}


def _ends(sides: Mapping[str, tuple[float, float, float]]) -> dict[str, float]:
    return {
        f"{side}{end}": value
        for side, three in sides.items()
        for end, value in zip(("", "_low", "_high"), three, strict=True)
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
