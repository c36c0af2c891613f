"""The handshake, from the server's side: ask every site for its description, agree, measure, send the layout.

    agreement, layout = handshake(call, run="r1", method="fedper", seed=0)

`call` takes a letter and gives {site: reply}; how it does so is the caller's business. Nothing trains here.
Knows the order of questions. Does not know tables, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from motet.core import Tree
from motet.data.federated import DataError
from motet.deploy.agreement.layout import Layout
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
    agreement is checked, so that people see what does not fit."""
    described = trees_of(call(Letter("describe", run)))
    agreement = merge(described, method, features)
    on_agreement(agreement)
    layout = measured(call, run, agreement.check(), agreement.layout(scale, seed, val, test))
    trees_of(call(Letter("layout", run, send=layout.tree())))
    return agreement, layout


def measured(call: Call, run: str, agreement: Agreement, layout: Layout) -> Layout:
    """The layout with means and spreads of all sites' training rows, from sums."""
    if not (layout.wants_sums or agreement.holes):
        return layout
    letter = Letter("measure", run, send={"layout": layout.tree(), "middle": ()})
    first = summed(trees_of(call(letter)), ("rows", "many", "total"))
    layout = layout.with_means(first["many"], first["total"])
    middle = first["total"] / np.maximum(first["many"], 1)
    sent = {"layout": layout.tree(), "middle": torch.from_numpy(middle)}
    second = summed(trees_of(call(replace(letter, send=sent))), ("rows", "squares"))
    return layout.with_spread(second["rows"], second["squares"])


def trees_of(replies: Mapping[str, Reply]) -> dict[str, Tree]:
    """What sites replied; a refusal of one is the end, and all refusals are said."""
    if wrong := [r.refusal for r in replies.values() if r.refusal]:
        raise DataError("\n".join(wrong))
    if not replies:
        raise DataError("no site answered.\nhint: see `motet federation status`")
    return {s: replies[s].tree for s in sorted(replies)}


def summed(sums: Mapping[str, Tree], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Sums over sites of numbers by column, in the order of sites' names."""
    total: dict[str, np.ndarray] = {}
    for site, tree in sums.items():
        for name in names:
            v = tree.get(name) if isinstance(tree, dict) else None
            if not isinstance(v, torch.Tensor) or v.ndim != 1 or not bool(torch.isfinite(v.double()).all()):
                raise DataError(f"site {site} sent no sums of its columns when it was asked for {name}")
            values = v.double().numpy()
            if name in total and total[name].shape != values.shape:
                raise DataError(
                    f"site {site} sent sums of {len(values)} columns; expected {len(total[name])}"
                )
            total[name] = total.get(name, 0) + values
    return total
