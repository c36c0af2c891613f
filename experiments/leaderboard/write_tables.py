"""Write the tables of the leaderboard into its README, from what `motet reproduce leaderboard` left:

    python -m experiments.leaderboard.write_tables runs/reproduce/leaderboard/desk

What stands between two marks in README.md is written anew; all else is left.
Knows standings as plain data, and Markdown. Does not read runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import special

from motet.report.read import ALONE, POOLED
from motet.report.terminal import PERCENT, gain, number, score, unit, with_interval

Standing = Mapping[str, Any]
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
HELPS, NOT_SHOWN, HARMS = "helps", "not shown", "harms"
REFERENCES = (ALONE, POOLED)  # no federated methods
WIDEST = 1.0  # an interval of accuracies that is wider says nothing: so few clients and splits have no spread
AGAINST = {"alone": "training alone", "fedavg": "FedAvg"}


def main(folder: str) -> None:
    order = ("digits", "heart", "mnist", "school", "cifar100-small")
    found = [json.loads(p.read_text()) for n in order if (p := Path(folder) / f"{n}.json").exists()]
    before, after = README.read_text().split(BEGIN)[0], README.read_text().split(END)[1]
    README.write_text("\n".join([before + BEGIN, "", *page(found), "", END + after]))


def page(standings: Sequence[Standing]) -> list[str]:
    """All tables, the overall one first; it has the data sets that all methods were tried on."""
    many = [len(s["methods"]) + len(s["unfit"]) for s in standings]
    whole = [s for s, n in zip(standings, many, strict=True) if n == max(many)]
    lines = ["### Overall", "", *overall(whole), ""]
    for one in standings:
        lines += [f"### {one['name']}", "", *sentences(one), "", *table(one), ""]
    return lines[:-1]


def overall(standings: Sequence[Standing]) -> list[str]:
    """A row for each method: its mean rank, and on which data sets it helps and harms."""
    names = sorted({m for s in standings for m in s["methods"]} - set(REFERENCES))
    places = {s["name"]: ranks(s) for s in standings}
    rows = [overall_row(m, standings, places) for m in names]
    rows.sort(key=lambda row: row[0])
    head = ["method", "mean rank", "ran on", "over alone: helps / not shown / harms", "over FedAvg", *places]
    return markdown([head, *(row[1] for row in rows)])


def overall_row(
    method: str, standings: Sequence[Standing], places: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    there = [s for s in standings if method in s["methods"]]
    each = [places[s["name"]][method] for s in there]
    calls = [called(there, method, against) for against in AGAINST]
    cells = [method, f"{mean(each):.1f}", str(len(there)), calls[0], calls[1] if method != "fedavg" else "–"]
    cells += [score_cell(s, method) if s in there else "–" for s in standings]
    return (-len(there), mean(each)), cells


def score_cell(standing: Standing, method: str) -> str:
    return score(mean(standing["methods"][method]["scores"]), standing["metric"])


def called(standings: Sequence[Standing], method: str, against: str) -> str:
    words = [verdict(s["methods"][method][against]) for s in standings]
    return " / ".join(str(words.count(w)) for w in (HELPS, NOT_SHOWN, HARMS))


def ranks(standing: Standing) -> dict[str, int]:
    """1 for the federated method with the best mean test score."""
    scores = {m: mean(one["scores"]) for m, one in standing["methods"].items() if m not in REFERENCES}
    order = sorted(scores, key=lambda m: -standing["better"] * scores[m])
    return {m: place for place, m in enumerate(order, 1)}


def verdict(gained: Mapping[str, Any]) -> str:
    """By the 95 % interval; a star if an interval that holds for all methods at once says the same.

    >>> verdict({"mean": 0.1, "low": 0.05, "high": 0.2}), verdict({"mean": -0.1, "low": -0.3, "high": 0.1})
    ('helps', 'not shown')
    """
    if gained["low"] is None:
        return NOT_SHOWN
    return HELPS if gained["low"] > 0 else HARMS if gained["high"] < 0 else NOT_SHOWN


# ---- one data set ----


def sentences(standing: Standing) -> list[str]:
    """What was run, who helps and harms, and who does not apply."""
    methods, seeds = standing["methods"], standing["seeds"]
    what = f"{standing['clients']} clients, {standing['rows']:,} rows; {net_of(standing)}, "
    what += f"{standing['settings']['train']['rounds']} rounds; seeds {', '.join(map(str, seeds))}; "
    what += f"{standing['budget']} settings for each method; {standing['date']}, commit {standing['commit']}."
    lines = [what, ""]
    for against, said in AGAINST.items():
        lines += [f"- Over {said}: {split(methods, against)}"]
    if unfit := standing["unfit"]:
        lines += ["- Left out: " + "; ".join(f"{m} ({short(why)})" for m, why in sorted(unfit.items())) + "."]
    return lines


def net_of(standing: Standing) -> str:
    net = standing["settings"]["net"]
    return " ".join([net["name"], *(f"{k} {v}" for k, v in net.items() if k != "name")])


def short(why: str) -> str:
    return why.rstrip(".").replace("|", "/")


def split(methods: Mapping[str, Any], against: str) -> str:
    found: dict[str, list[str]] = {HELPS: [], NOT_SHOWN: [], HARMS: []}
    for m, one in methods.items():
        if m not in (*REFERENCES, against) and one[against]["mean"] is not None:
            word = verdict(one[against])
            found[word].append(m + "*" * (word != NOT_SHOWN and bool(one[against]["sure"])))
    return (
        "; ".join(f"{word} ({len(some)}): {', '.join(sorted(some)) or '–'}" for word, some in found.items())
        + "."
    )


def table(standing: Standing) -> list[str]:
    metric, methods = standing["metric"], standing["methods"]
    fair = {m: one for m, one in methods.items() if m not in REFERENCES and one["validation"] is not None}
    best = max(fair, key=lambda m: standing["better"] * fair[m]["validation"])
    order = sorted(methods, key=lambda m: -standing["better"] * mean(methods[m]["scores"]))
    head = [
        "method",
        f"{unit(metric)} (95 % over seeds)",
        "over alone",
        "over FedAvg",
        "seconds",
        "kB",
        "settings",
    ]
    return markdown([head, *(cells(m, methods[m], metric, bold=m == best) for m in order)])


def cells(method: str, one: Mapping[str, Any], metric: str, bold: bool) -> list[str]:
    name = f"**{method}**" if bold else method
    sent = "–" if one["kilobytes"] is None else number(one["kilobytes"])
    seconds = f"{one['seconds']:.1f}"
    gained = [change(one[a], metric) for a in AGAINST]
    return [
        name,
        over_seeds(one["scores"], metric),
        *gained,
        seconds,
        sent,
        one["chosen"].split(":")[0] or "–",
    ]


def change(gained: Mapping[str, Any], metric: str) -> str:
    if gained["mean"] is None:
        return "–"
    low, high = (nan if gained[k] is None else gained[k] for k in ("low", "high"))
    if high - low > WIDEST and metric in PERCENT:
        return f"{gain(gained['mean'], metric)} (not known)"
    return with_interval(gained["mean"], low, high, metric)


def over_seeds(scores: Sequence[float], metric: str) -> str:
    """The mean, and half of Student's 95 % interval over seeds.

    >>> over_seeds([0.9, 0.92, 0.94], "accuracy"), over_seeds([0.9], "accuracy")
    ('92.0 ± 5.0', '90.0')
    """
    if len(scores) < 2:
        return score(scores[0], metric)
    half = float(special.stdtrit(len(scores) - 1, 0.975)) * stdev(scores) / len(scores) ** 0.5
    return f"{score(mean(scores), metric)} ± {gain(half, metric).lstrip('+')}"


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]]


if __name__ == "__main__":
    main(sys.argv[1])
