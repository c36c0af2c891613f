"""The handshake, from the server's side: ask every site for its description, agree, measure, send the layout.

    agreement, layout = handshake(call, run="r1", method="fedper", seed=0)

`call` takes a letter and gives {site: reply}; how it does so is the caller's business. Nothing trains here.
Knows the order of questions. Does not know tables, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from motet.core import Tree
from motet.data.federated import DataError
from motet.deploy.agreement.column_sums import pooled
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.agreement.schema import Agreement, Features, merge
from motet.engines.letters import Letter, Reply

Call = Callable[[Letter], Mapping[str, Reply]]


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
    on_agreement: Callable[[Agreement], Any] = lambda a: None,
) -> tuple[Agreement, Layout]:
    """What all sites hold, and the layout that all of them then use. `on_agreement` is called before the
    agreement is checked, so that people see what does not fit. `seed`, `val` and `test` are what the recipe has;
    sites divide their rows in their own way, and where that differs a note says so."""
    described = trees_of(call(Letter("describe", run)))
    agreement = merge(described, method, features)
    agreement.note_splits(Split(val, test, seed, scale))  # type: ignore[arg-type]
    on_agreement(agreement)
    layout = measured(call, run, agreement.check(), agreement.layout(scale))
    trees_of(call(Letter("layout", run, send=layout.tree())))
    return agreement, layout


def measured(call: Call, run: str, agreement: Agreement, layout: Layout) -> Layout:
    """The layout with means and spreads of all sites' training rows, from sums. Sites are asked once, and what
    they answer depends on the kind of the target alone: a letter cannot choose rows, columns or middles."""
    if not (layout.wants_sums or agreement.holes):
        return layout
    return pooled(layout, agreement.own, trees_of(call(Letter("measure", run, send={"kind": layout.kind}))))


def trees_of(replies: Mapping[str, Reply]) -> dict[str, Tree]:
    """What sites replied; a refusal of one is the end, and all refusals are said."""
    if wrong := [r.refusal for r in replies.values() if r.refusal]:
        raise DataError("\n".join(wrong))
    if not replies:
        raise DataError("no site answered.\nhint: see `motet federation status`")
    return {s: replies[s].tree for s in sorted(replies)}
