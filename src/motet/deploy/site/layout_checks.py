"""Whether the scaling that a layout brings is near what a site says of its own columns.

Knows layouts and the sums that a site says. Does not know rows.
"""

from __future__ import annotations

import numpy as np
import torch

from motet.data.federated import Scaler
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.policy import RefusedByPolicy

FAR = 30.0  # spreads from a federation's mean to a site's, at most: a site with a thousandth of the rows has less


def check_scaling(layout: Layout, said: ColumnSums | None) -> None:
    """Means and spreads of rows that include this site's are not far from what it says of its own, by the layout's
    columns; what is far makes single rows outweigh all others in what is trained. Where it says nothing, nothing is
    compared: whether a layout is refused would tell."""
    federation = layout.scale == "federation"
    if federation and not (
        isinstance(layout.middle, torch.Tensor) and isinstance(layout.spread, torch.Tensor)
    ):
        raise RefusedByPolicy("a layout is to scale columns, and has no means and spreads", "layout")
    filled, d = isinstance(layout.means, torch.Tensor), len(layout.columns)
    if filled and bool((~layout.numbers & (abs(layout.means.numpy() - 0.5) > 0.5 + 1e-9)).any()):
        raise RefusedByPolicy("a layout fills truth values with what is none", "layout")
    if said is None:
        return
    there = said.many > 0
    own = Scaler(said.mean, np.sqrt(said.squares / np.maximum(said.rows, 1)))
    wide = np.where(own.spread > 0, own.spread, 1.0)
    scaler = layout.scaler if federation else Scaler(own.middle[:d], wide[:d])
    far = _far(Scaler(own.middle[:d], own.spread[:d]), scaler) if federation else np.zeros(d, bool)
    if filled:
        far = far | (abs(layout.means.numpy() - scaler.middle) / scaler.spread > FAR)
    if odd := np.flatnonzero(there[:d] & layout.numbers & far).tolist():
        name = layout.columns[odd[0]][0]
        raise RefusedByPolicy(f"a layout scales or fills the column {name!r} out of bounds", "layout")
    if layout.kind == "numbers" and there[-1]:
        target = Scaler(*map(np.asarray, layout.target))
        if _far(Scaler(own.middle[-1], own.spread[-1]), target):
            raise RefusedByPolicy("a layout scales the target out of bounds", "layout")


def _far(own: Scaler, scaler: Scaler) -> np.ndarray:
    return np.asarray(np.maximum(abs(own.middle - scaler.middle), own.spread) / scaler.spread > FAR)
