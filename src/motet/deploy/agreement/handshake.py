"""The handshake, from the server's side: ask every site for its description, agree, measure, send the layout.

    agreement, layout = handshake(call, run="r1", method="fedper", seed=0)

`call` takes a letter and gives {site: reply}; how it does so is the caller's business. Nothing trains here. Replies
that cannot be what was asked for are an UnusableReplies: the caller may begin anew without those sites.
Knows the order of questions. Does not know tables, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from motet.core import Tree
from motet.data.federated import DataError
from motet.deploy.agreement.column_sums import ColumnSums, combined
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.agreement.masked_sums import ExactSum, count_rows, masked_layout
from motet.deploy.agreement.refusals import WHERE, explained
from motet.deploy.agreement.schema import Agreement, Features, merge
from motet.deploy.agreement.site_replies import (
    UnusableReplies,
    check_widths,
    checked_description,
    each_site,
    part_rows,
)
from motet.deploy.agreement.sum_checks import ColumnMeans, check_ranges, middle_spread
from motet.engines.letters import Letter, Reply
from motet.engines.site_scores import MOST_ROWS

Call = Callable[[Letter], Mapping[str, Reply]]
Rows = Mapping[str, int]  # of each site's table, as it said; 0 where it lets no numbers of rows leave
_MOST_OF_ALL = 0.9  # share of all rows at one site that people are told of


def handshake(
    call: Call,
    run: str,
    method: str = "",
    *,
    seed: int = 0,
    scale: str = "auto",
    val: float = 0.15,
    test: float = 0.25,
    features: Features = "same",
    robust: bool = False,
    summed: ExactSum | None = None,
    on_agreement: Callable[[Agreement], Any] = lambda a: None,
) -> tuple[Agreement, Layout]:
    """What all sites hold, with the numbers of rows that they keep to, and the layout that all of them then use.
    `on_agreement` is called before the agreement is checked, so that people see what does not fit, and again when
    more is known. `seed`, `val` and `test` are what the recipe has; sites divide their rows in their own way, and where
    that differs a note says so. `robust`: no single site moves the scaling far. `summed` sums what sites hide from the
    server under masks; None in a run without masks."""
    described = each_site(trees_of(call(Letter("describe", run))), checked_description)
    check_widths(described)
    rows = {site: int(tree["counts"].get("rows", 0)) for site, tree in described.items()}
    agreement = merge(described, method, features)
    agreement.note_splits(Split(val, test, seed, scale))  # type: ignore[arg-type]
    agreement.notes += large_sites(rows)
    on_agreement(agreement)
    layout = agreement.check().layout(scale)
    if "sums" in agreement.hidden and (layout.wants_sums or agreement.holes):
        layout = masked_layout(layout, agreement, summed)
    else:
        layout = measured(call, run, agreement, layout, rows, robust)
    replies = trees_of(call(Letter("layout", run, send=layout.tree())))
    agreement.part_rows = each_site(replies, lambda site, tree: part_rows(tree, rows.get(site, 0)))
    if summed and "counts" in agreement.hidden:
        count_rows(agreement, summed)
    on_agreement(agreement)
    return agreement, layout


def measured(
    call: Call, run: str, agreement: Agreement, layout: Layout, rows: Rows, robust: bool = False
) -> Layout:
    """The layout with means and spreads of all sites' training rows, from sums. Sites are asked once, and what
    they answer depends on the kind of the target alone: a letter cannot choose rows, columns or middles."""
    if not (layout.wants_sums or agreement.holes):
        return layout

    def read(site: str, tree: Tree) -> ColumnSums:
        own = agreement.own[site]
        sums = ColumnSums.of(site, tree, len(own) + (layout.kind == "numbers"))
        flags = np.array([kind == "flag" for _, kind, _ in own] + [False] * (layout.kind == "numbers"))
        check_ranges(sums._asdict(), flags, rows.get(site) or MOST_ROWS)
        return sums.aligned(own, layout)

    found = each_site(trees_of(call(Letter("measure", run, send={"kind": layout.kind}))), read)
    said = ColumnMeans.of(layout, {s: v._asdict() for s, v in found.items()})
    said.check_gross()
    said.check_spreads(np.stack([found[s].squares for s in said.sites]))
    agreement.notes += said.notes
    if not robust:
        return combined(layout, list(found.values()))
    agreement.notes.append("numbers are standardised by the middle site's mean and spread (guard.mean)")
    middle = said.middle_site()
    about = {s: {"rows": v.rows, "squares": v.about(middle)} for s, v in found.items()}
    layout = layout.with_means(np.ones(len(middle)), middle)
    return layout.with_spread(np.ones(len(middle)), middle_spread(about))


def trees_of(replies: Mapping[str, Reply]) -> dict[str, Tree]:
    """What sites replied; a refusal of one is the end, and all refusals are said."""
    wrong = {s: r.refusal for s, r in replies.items() if r.refusal}
    if wrong:
        lines = [f"site {s}: {explained(why.removeprefix(f'{s}: '))}" for s, why in wrong.items()]
        raise DataError("\n".join([*lines, WHERE]))
    if not replies:
        raise DataError("no site answered.\nhint: see `motet federation status`")
    return {s: replies[s].tree for s in sorted(replies)}


def check_publishers(replies: Mapping[str, Reply]) -> None:
    """Leave out sites that may not, or cannot, publish their models: the others go on without them."""
    if wrong := {s: explained(r.refusal) for s, r in replies.items() if r.refusal == "publish"}:
        raise UnusableReplies(wrong)


def large_sites(rows: Rows) -> list[str]:
    """Who says that nearly all rows are at one site, which then decides nearly all of every mean."""
    total = sum(rows.values())
    return [
        f"site {s} says that it has {n} of all {total} rows: it decides nearly all of every mean"
        for s, n in rows.items()
        if len(rows) > 1 and n > _MOST_OF_ALL * total
    ]
