"""What a comparison means, in at most five plain lines: does federating help, with which method, how sure.

Every line is computed from the table and claims no more than its intervals hold. The method is chosen by
validation scores; test scores say how good it is. Knows no HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from motet.report.read import ALONE, ReportedRun
from motet.report.tables import ROLES, SIGNIFICANT, comparison
from motet.report.terminal import MOST_NAMED, PERCENT, gain, listed, named, number, said_score, three_digits

if TYPE_CHECKING:
    import pandas as pd

FEW_ROWS = 30  # test rows of a client: with fewer, one client is hardly ever told apart
CLAIMS = {"helps": "Federating helps here", "harms": "Federating harms here"}
EXPECTED = ("accuracy", "rmse", "cindex")  # metrics that need no reason
EQUAL_RISKS = "equal risks"  # the constant of survival


def verdict(runs: Sequence[ReportedRun], table: pd.DataFrame | None = None) -> list[str]:
    """The lines; `table` is the comparison of these runs, if it is there already."""
    table = comparison(runs) if table is None else table
    rows: list[Any] = [row for row in table.to_dict("records") if not math.isnan(row["personal"])]
    if not any(row["role"] != "constant" for row in rows):
        return ["No method has test scores: every run failed or is still running."]
    best = next((row for row in rows if row["best"]), None)
    single = len({run.label for run in runs}) == 1
    lines = _one(rows, table) if single or best is None else _two(best, rows, table)
    return [line for line in (*lines, _unconverged(rows), _caution(runs, table)) if line]


# ---- one method ----


def _one(rows: Sequence[Any], table: pd.DataFrame) -> list[str]:
    """A single method, or none that federates: its score, and no comparison."""
    row, metric = rows[0], table.attrs["metric"]
    who = _scored(row["clients"], row, table)
    said = f"{row['name']}: {said_score(row['personal'], metric)} {named(metric)} on average over {who}"
    beaten = _constant(row, rows, metric)
    if any(r["federated"] for r in rows[1:]):
        return [f"{said}{beaten}.", "No method is chosen: none has validation scores of all its runs."]
    if row["federated"] and not math.isnan(row["gain_local"]):
        return [_helps(row, rows, table), f"{said}{beaten}."]
    need = "a federated method" if row["role"] else "a run of local"
    return [f"{said}{beaten}.", f"Whether federating helps needs {need} to compare with."]


# ---- several methods ----


def _two(best: Any, rows: Sequence[Any], table: pd.DataFrame) -> list[str]:
    return [
        _helps(best, rows, table),
        _others_help(best, rows, table),
        _best(best, rows, table.attrs["metric"]),
    ]


def _others_help(best: Any, rows: Sequence[Any], table: pd.DataFrame) -> str:
    """Which methods clearly gain where the one that validation rows chose does not. Test rows choose none of them, and
    each is held to an interval with which those of all methods hold at once."""
    if best["gain_local_low"] > 0:
        return ""
    clear = [r for r in rows if r["federated"] and not r["best"] and r["clear_gain"]]
    if not clear:
        return ""
    said = [f"{r['name']} {_change(r['gain_local'], table)}" for r in clear]
    gains = "gains" if len(clear) == 1 else "gain"
    return (
        f"That is of {best['name']}, which validation rows chose. On test rows, which choose nothing, {listed(said)} "
        f"clearly {gains} over training alone, also when corrected for the number of methods."
    )


def _change(value: float, table: pd.DataFrame) -> str:
    """A gain in brackets, positive is better: `(+2.9 points)`, `(0.0047 less error)`."""
    metric = table.attrs["metric"]
    if table.attrs["better"] < 0:
        return f"({three_digits(abs(value))} less error)"
    return f"({gain(value, metric)}{' points' if metric in PERCENT else ''})"


def _helps(row: Any, rows: Sequence[Any], table: pd.DataFrame) -> str:
    """Whether the method chosen beats its own kind alone; no claim where the interval holds zero."""
    mean, low, high = row["gain_local"], row["gain_local_low"], row["gain_local_high"]
    unsure = "Whether federating helps cannot be told here"
    if math.isnan(mean):
        return f"{unsure}: no run of local has the same network, data, training and seed."
    if low == high == 0:
        who, metric = _clients(row["pairs_local"], table), named(table.attrs["metric"])
        return f"No difference in {metric} on these {row['rows_local']:,} test rows, at any of {who}."
    kind = row["alone_is"]
    alone = [r for r in rows if r["role"] == ROLES[ALONE] and kind.startswith(f"{r['method']}, ")]
    when = ""
    if late := [r for r in (row, *alone) if r["needs"]]:
        names = listed([r["name"] for r in late])
        when = f" after {number(late[0]['rounds'])} rounds ({names} not yet converged)"
    if math.isnan(low):
        where = "from one pair of scores"
        if row["pairs_local"] > 1:
            where = f"at each of {_clients(row['pairs_local'], table)}"
        return f"{unsure}{when}: {difference(mean, table)} {where}, too few for an interval."
    claim = CLAIMS["helps"] if low > 0 else CLAIMS["harms"] if high < 0 else unsure
    over = f" over {_scored(row['pairs_local'], row, table)}" if row["unscored"] else ""
    ends = _ends(low, high, table)
    return f"{claim}{when}: {difference(mean, table)} on average{over} ({ends}){_counts(row, table)}."


def difference(value: float, table: pd.DataFrame) -> str:
    """`+2.9 points of accuracy`, `0.310 less error (RMSE)`."""
    metric = table.attrs["metric"]
    if table.attrs["better"] < 0:
        return f"{three_digits(abs(value))} {'less' if value >= 0 else 'more'} error ({named(metric)})"
    return f"{gain(value, metric)} {'points of ' if metric in PERCENT else ''}{named(metric)}"


def _ends(low: float, high: float, table: pd.DataFrame) -> str:
    metric = table.attrs["metric"]
    if table.attrs["better"] > 0:
        return f"95 %: {gain(low, metric)} to {gain(high, metric)}"
    kinds = ["less" if v >= 0 else "more" for v in (low, high)]
    first, last = (three_digits(abs(v)) for v in (low, high))
    return f"95 %: {first} {kinds[0] if kinds[0] != kinds[1] else ''} to {last} {kinds[1]}".replace("  ", " ")


def _counts(row: Any, table: pd.DataFrame) -> str:
    """`; 9 clients better, 8 the same, 1 worse`, each client by its own test rows."""
    better, same, worse, unknown = (row[f"clients_{w}"] for w in ("better", "same", "worse", "not_known"))
    if not better + same + worse:
        return ""
    rest = f"{same:,} the same, {worse:,} worse" + (f", {unknown:,} not known" if unknown else "")
    if _drawn(table):
        return f"; of {_clients(row['pairs_local'], table)}, {better:,} better, {rest}"
    return f"; {_clients(better, table)} better, {rest}"


def _drawn(table: pd.DataFrame) -> bool:
    return not table.attrs["natural"] and len(table.attrs["splits"]) > 1


def _clients(many: int, table: pd.DataFrame) -> str:
    where = f" in {len(table.attrs['splits'])} splits" if _drawn(table) else ""
    return f"{many:,} client{'s' * (many != 1)}{where}"


def _scored(many: int, row: Any, table: pd.DataFrame) -> str:
    """`14 of 20 clients`, where some have no score."""
    return f"{many:,} of " * bool(row["unscored"]) + _clients(many + row["unscored"], table)


def _best(best: Any, rows: Sequence[Any], metric: str) -> str:
    others = [row for row in rows if row["federated"] and not row["best"]]
    close = [row["name"] for row in others if not row["p_best"] < SIGNIFICANT]
    ahead = [row["name"] for row in others if row["beats_best"]]
    hurt = "Best" if best["gain_local_low"] > 0 else "Best of the federated methods"
    if not others:
        tail = ", the only federated method here"
    elif not close:
        tail = "" if ahead else "; it can be told apart from the others"
    else:
        tail = f"; {listed(close)} cannot be told apart"
    if ahead:
        tail += f"; on test rows, which choose nothing, {listed(ahead)} did better"
    return f"{hurt}: {best['name']}{tail}{_constant(best, rows, metric)}."


def _constant(row: Any, rows: Sequence[Any], metric: str) -> str:
    """Said where a model is not known to be better than none, or is surely worse."""
    none = next((r for r in rows if r["role"] == "constant"), None)
    if none is None or row["role"] == "constant" or row["gain_constant_low"] > 0:
        return ""
    name = none["name"]
    known = name if name == EQUAL_RISKS else f"the {name} of each client's own training rows"
    if not row["gain_constant_high"] < 0:
        return f"; {row['name']} is not known to beat {known}"
    known += f" ({named(metric)} {said_score(none['personal'], metric)})"
    models = [r for r in rows if r["role"] != "constant"]
    if any(r["role"] == ROLES[ALONE] for r in models) and all(r["gain_constant_high"] < 0 for r in models):
        return f"; no model, training alone included, beats {known}"
    return f"; {row['name']} is worse than {known}"


# ---- how far it can be relied on ----


def _unconverged(rows: Sequence[Any]) -> str:
    """Which methods were still improving when they stopped."""
    late = [row for row in rows if row["needs"]]
    if not late:
        return ""
    first, *more = late[:MOST_NAMED]
    parts = [
        f"{first['name']} would need {first['needs']} rounds",
        *(f"{r['name']} {r['needs']}" for r in more),
    ]
    rest = len(late) - MOST_NAMED
    return f"Not yet converged: {', '.join(parts)}{f', and {rest} more methods' if rest > 0 else ''}."


def _caution(runs: Sequence[ReportedRun], table: pd.DataFrame) -> str:
    """Why this metric, what repeated runs differ in, what one training leaves out, and how few test rows there are."""
    metric = runs[0].metric
    whys = dict.fromkeys(str(run.facts.get("metric_why") or "") for run in runs)
    said = [_sentence(why, metric) for why in whys if why and metric not in EXPECTED][:1]
    if varied := table.attrs["what_varies"]:
        said.append(f"The data fix the test rows: runs of a method differ in {varied}, not in test rows.")
    if once := table.attrs["one_training"]:
        said.append(once)
    rows = [n for run in runs if not run.trouble for n in run.test.loc[run.test["side"] == "personal", "n"]]
    middle = sorted(rows)[len(rows) // 2] if rows else FEW_ROWS
    if middle < FEW_ROWS:
        said.append(
            f"Few test rows: half of the clients have {number(middle)} or fewer, which tell little of one client."
        )
    return " ".join(said)


def _sentence(text: str, metric: str) -> str:
    """
    >>> _sentence("auc, because 4 % are ill", "auc")
    'AUC, because 4 % are ill.'
    """
    text = text.replace(metric, named(metric), 1) if text.startswith(metric) else text
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
