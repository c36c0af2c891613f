"""Advice as plain text: a few sentences, a table of clients, and the next command. Knows no torch and no files."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from motet.report.terminal import PERCENT, gain, named, short
from motet.text import aligned, duration

if TYPE_CHECKING:
    from motet.advice.advise import Advice
    from motet.advice.predicted_gains import Gains

SHOWS = "shows: the smallest gain, in points, that a client's own test rows show four times of five"
MOST = 30  # clients that are listed
_NAMES = 24  # letters of a client's name


def as_text(advice: Advice, width: int, everyone: bool = False) -> str:
    """Everything, as wide as the terminal."""
    parts = [
        *_wrapped([verdict(advice)], width),
        "",
        *_pairs(facts(advice), width),
        "",
        *clients(advice, everyone),
        "",
        "methods that fit (rules of thumb; a probe says what they are worth here)",
        *_pairs([(fit.method, _with_gain(advice, fit.method, fit.why)) for fit in advice.fits], width),
    ]
    failed = [f"{p.method} was not probed: {p.failure}" for p in advice.probed if p.failure]
    return "\n".join([*parts, *_wrapped(failed, width)])


def verdict(advice: Advice) -> str:
    """One sentence: what the probe says, or what a study could say."""
    best = advice.best
    if best is None:
        return _before(advice)
    mean, low, high = (_size(v, advice.metric) for v in (best.mean, best.low, best.high))
    where = f"after {advice.rounds} rounds, on validation rows"
    after = f"{where}: {best.method} {mean} (95 %: {low} to {high}) over training alone"
    said = {
        "helps": "Federating promises a gain",
        "hurts": "Federating promises no gain",
        "open": "Whether federating gains is open",
    }[best.sure]
    return f"{said}: {after}, mean of {len(best.clients)} clients."


def _before(advice: Advice) -> str:
    least = advice.smallest_mean_gain
    if math.isnan(least):
        return "Too few test rows to show any gain. Nothing was trained."
    if advice.metric != "accuracy":
        return f"Nothing was trained. A probe says what gain of {named(advice.metric)} to expect."
    return (
        f"Nothing was trained. A study on these test rows is likely to show a mean gain of {100 * least:.1f} points of "
        "accuracy or more, and to miss a smaller one."
    )


def _size(value: float, metric: str) -> str:
    """`+2.9 points`, or with three digits where the metric is no share."""
    return f"{gain(value, metric)} points" if metric in PERCENT else gain(value, metric)


def facts(advice: Advice) -> list[tuple[str, str]]:
    skew, rows = advice.skew, advice.survey["rows"]
    many = len(advice.test_rows)
    shifted = f"{len(skew.shifted)} of {many} clients are shifted by half a standard deviation or more, beyond chance"
    total = (advice.cost.up + advice.cost.down) * many
    found = [
        ("labels", f"{skew.words} skew: distance {skew.label:.2f} on average, {skew.label_by_chance:.2f} by chance "
         "(0 alike, 1 disjoint)"),
        ("features", shifted + ("; clients hold different columns" if skew.columns_differ else "")),
        ("sizes", f"{rows['min']:,.0f} to {rows['max']:,.0f} rows a client, Gini {skew.quantity:.2f}"),
        ("cost", f"a round of FedAvg: {megabytes(total)} for {many} clients ({advice.weights:,} weights), "
         f"{duration_of(advice.cost.seconds * many)} of computing, one client after another"),
    ]  # fmt: skip
    if skew.groups > 1:
        found.insert(1, ("groups", f"labels fall into {skew.groups} groups of clients"))
    return found


def clients(advice: Advice, everyone: bool) -> list[str]:
    """The table of clients; with a probe, the predicted gains."""
    frame, metric = advice.clients, advice.metric
    heads = ["client", "train", "test", "labels", "shows"]
    probed = "predicted" in frame
    heads += ["predicted gain (95 %)"] if probed else []
    rows = [heads]
    for row in frame.head(len(frame) if everyone else MOST).itertuples():
        shows = (
            "–" if metric != "accuracy" or math.isnan(row.smallest_gain) else f"{100 * row.smallest_gain:.0f}"
        )
        cells = [
            short(row.client, _NAMES),
            f"{row.train:,}",
            f"{row.test:,}",
            f"{row.label_distance:.2f}",
            shows,
        ]
        if probed:
            ends = f"{gain(row.low, metric)} to {gain(row.high, metric)}"
            cells.append("–" if math.isnan(row.predicted) else f"{gain(row.predicted, metric)} ({ends})")
        rows.append(cells)
    rest = len(frame) - len(rows) + 1
    more = [f"… and {rest:,} more (--all shows them)"] if rest else []
    note = [SHOWS] if metric == "accuracy" else []
    return [*aligned(rows, right=range(1, len(heads))), *more, *note]


def _with_gain(advice: Advice, method: str, why: str) -> str:
    found: Gains | None = advice.gains.get(method)
    if found is None:
        return why
    ends = f"{gain(found.low, advice.metric)} to {gain(found.high, advice.metric)}"
    return f"{gain(found.mean, advice.metric)} ({ends}) in the probe; {why}"


def megabytes(size: float) -> str:
    """
    >>> megabytes(2_500_000), megabytes(1234)
    ('2.5 MB', '1.2 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def duration_of(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def _pairs(pairs: list[tuple[str, str]], width: int) -> list[str]:
    """A name and a sentence, wrapped behind the name."""
    wide = max(len(name) for name, _ in pairs) + 2
    lines = []
    for name, text in pairs:
        lines += textwrap.wrap(text, width, initial_indent=name.ljust(wide), subsequent_indent=" " * wide)
    return lines


def _wrapped(sentences: list[str], width: int) -> list[str]:
    return [line for text in sentences for line in textwrap.wrap(text, width)]
