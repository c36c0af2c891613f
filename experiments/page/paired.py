"""Differences between PAGE and the other rows of a table, each with its interval.

Local: test scores of clients' models right after training, paired client by client. Global: scores on the
server's test set; with one seed they are two shares of as many rows, which are not paired, with several they are
paired seed by seed. Knows runs as reports read them. Does not know how the runs were made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from motet.data.load import load
from motet.report.certainty import Interval, interval, two_shares
from motet.report.read import ReportedRun, read

FIRST = "PAGE"  # the row that others are compared with
Groups = dict[str, list[ReportedRun]]  # runs of each row


def lines(done: Iterable[Any], first: str = FIRST) -> list[str]:
    """A line for each other row: by how many points `first` is above it, on both sides."""
    groups = by_row(done)
    own = groups.pop(first, [])
    if not own or not groups:
        return []
    wide = max(map(len, groups))
    head = f"{first} less the other rows, points, with 95 % intervals:"
    return [head, *(f"  {row:<{wide}}  {compared(own, other)}" for row, other in groups.items())]


def by_row(done: Iterable[Any]) -> Groups:
    groups: Groups = defaultdict(list)
    for one in done:
        if not one.failure:
            groups[one.planned.row].append(read([one.folder])[0])
    return groups


def compared(own: Sequence[ReportedRun], other: Sequence[ReportedRun]) -> str:
    """`global +1.20 (0.30 to 2.10), local …`"""
    known = {run.seed: run for run in other}
    some = [(run, known[run.seed]) for run in own if run.seed in known]
    return f"global {shown(of_server(some))}, local {shown(of_clients(some))}"


def of_clients(some: Sequence[tuple[ReportedRun, ReportedRun]]) -> Interval | None:
    """Over clients; those of different seeds are different clients."""
    gains, units, seeds = [], [], []
    for run, rival in some:
        each = (run.of("after_training") - rival.of("after_training")).dropna()
        gains += each.to_list()
        units += [(run.seed, client) for client in each.index]
        seeds += [run.seed] * len(each)
    return interval(gains, units, seeds) if gains else None


def of_server(some: Sequence[tuple[ReportedRun, ReportedRun]]) -> Interval | None:
    """Over seeds; of one seed, over the server's test rows."""
    found = [(_server(run), _server(rival), run.seed) for run, rival in some]
    known = [(a, b, seed) for a, b, seed in found if a and b]
    if not known:
        return None
    gains, seeds = [a["accuracy"] - b["accuracy"] for a, b, _ in known], [seed for *_, seed in known]
    if len(known) > 1:
        return interval(gains, seeds, [0] * len(seeds))
    a, b, _ = known[0]
    return Interval(gains[0], *two_shares(a["accuracy"], b["accuracy"], server_rows(some[0][0])), 1)


def server_rows(run: ReportedRun) -> int:
    """Of the server's test set: the data are loaded to count them."""
    data = run.facts["settings"]["data"]
    rows = load(data["name"], {k: v for k, v in data.items() if k != "name"}).server_test
    return len(rows) if rows is not None else 0


def _server(run: ReportedRun) -> dict[str, float]:
    found: dict[str, float] = run.facts.get("server_test") or {}
    return found


def shown(found: Interval | None) -> str:
    """In points.

    >>> shown(Interval(0.012, 0.003, 0.021, 3))
    '+1.20 (+0.30 to +2.10)'
    """
    if found is None:
        return "–"
    return f"{100 * found.mean:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"
