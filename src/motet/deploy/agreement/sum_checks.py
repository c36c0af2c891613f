"""Sums of sites' columns: whether they can be sums, and the means and spreads that come of them.

Means of a federation are sums of sites divided by their numbers of cells, so one site with a false sum moves
everybody's scaling. Sums are held to their ranges; a site whose mean or spread of a column is out of all proportion to
the others' is told by name, or excluded. With a robust `guard.mean` the middle site counts, column by column, and
not the sum.
Knows sums by site. Does not know how they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from motet.data.federated import DataError
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.site_replies import UnusableReplies
from motet.engines.site_scores import MOST_ROWS
from motet.text import printable
from motet.wire import WireError

Array = np.ndarray[Any, Any]
Sums = Mapping[str, Mapping[str, Array]]  # by site, then by name: (columns,)
_GROSS = 1e9  # times what others say, or 1: known before spreads are, and no spread is needed for it
_FAR = 1e4  # spreads between a site's mean and the others', and times their spread: a wrong unit is nearer
_NOTABLE = 20.0  # spreads that people are told of
_UNDECIDED = 1e6  # as _FAR, where only two sites have the column and nobody knows which one is wrong


def check_ranges(found: Mapping[str, Array], flags: Array, described: float = MOST_ROWS) -> None:
    """Refuse sums by column that cannot be sums of a table with `described` rows; `flags` are truth values."""
    counts = [found[k] for k in ("rows", "many") if k in found]
    if any((v < 0).any() or (v > min(described, MOST_ROWS)).any() for v in counts):
        least, most = min(v.min() for v in counts), max(v.max() for v in counts)
        raise WireError(f"it counts {least:g} to {most:g} rows of a column")
    if "many" in found:
        _check_totals(found["rows"], found["many"], found["total"], flags)
    if "squares" in found and (found["squares"] < 0).any():
        raise WireError(f"a sum of squares is {found['squares'].min():g}")


def _check_totals(rows: Array, many: Array, total: Array, flags: Array) -> None:
    if (many > rows).any():
        raise WireError("it counts more cells of a column than rows")
    if (flags & ((total < -0.1 * many - 1) | (total > 1.1 * many + 1))).any():
        raise WireError("a sum of truth values is not between 0 and their number")
    if ((many == 0) & (total != 0)).any():
        raise WireError("it sums a column of which it has no cell")


# ---- what sites say of a column, side by side ----


@dataclass
class ColumnMeans:
    """Means of sites by column, and what is out of all proportion in them."""

    layout: Layout
    sites: list[str]
    many: Array  # (sites, columns)
    means: Array  # (sites, columns)
    notes: list[str] = field(default_factory=list)  # for people

    @classmethod
    def of(cls, layout: Layout, sums: Sums) -> ColumnMeans:
        sites = sorted(sums)
        many, total = (np.stack([sums[s][k] for s in sites]) for k in ("many", "total"))
        return cls(layout, sites, many, total / np.maximum(many, 1))

    def name(self, column: int) -> str:
        columns = self.layout.columns
        return printable(columns[column][0], 60) if column < len(columns) else "(the target)"

    def check_gross(self) -> None:
        """Refuse means that no unit of measurement explains, before spreads are known."""
        for column in range(self.means.shape[1]):
            at = np.flatnonzero(self.many[:, column] > 0)
            m = self.means[at, column]
            if len(at) > 1:
                usual = m[np.argsort(abs(m))[(len(m) - 1) // 2]]
                scale = max(1.0, abs(usual), _middle(abs(m - usual)) if len(m) > 2 else 0.0)
                self._refuse(column, at, abs(m - usual) > _GROSS * scale)

    def check_spreads(self, squares: Array, middle: Array | None = None) -> None:
        """Refuse or tell what is far from the others' means by the measure of their spreads. `squares` (sites,
        columns) are sums of squared distances to `middle`, or to each site's own mean."""
        own = squares / np.maximum(self.many, 1)  # variance within each site
        own = own if middle is None else own - (self.means - middle) ** 2
        spreads = np.sqrt(np.maximum(own, 0.0))
        for column in range(self.means.shape[1]):
            at = np.flatnonzero(self.many[:, column] > 0)
            if len(at) < 2:
                continue
            m, s = self.means[at, column], spreads[at, column]
            usual = _middle(m) if len(m) > 2 else m[np.argmin(abs(m))]
            scale = max(_middle(s), 1e-3 * abs(usual), _middle(abs(m - usual)) if len(m) > 2 else 0.0)
            if scale > 0:
                away = np.maximum(abs(m - usual), s) / scale
                self._refuse(column, at, away > (_FAR if len(at) > 2 else _UNDECIDED))
                self._note(column, at, away > _NOTABLE)

    def _refuse(self, column: int, at: Array, odd: Array) -> None:
        """A minority is wrong, and excluded; where it is no minority, nobody knows who is wrong."""
        if not odd.any():
            return
        who = [self.sites[i] for i in at[odd]]
        said = ", ".join(f"{self.sites[i]}: {self.means[i, column]:.3g}" for i in at)
        text = f"column {self.name(column)!r}: sites' means are out of all proportion ({said})"
        if 2 * len(who) >= len(at):
            raise DataError(
                f"{text}.\nhint: one of the sites is wrong; data.scale=client needs no sums of others"
            )
        raise UnusableReplies(dict.fromkeys(who, text))

    def _note(self, column: int, at: Array, odd: Array) -> None:
        for i in at[odd]:
            others = ", ".join(f"{self.means[j, column]:.3g}" for j in at if j != i)
            self.notes.append(
                f"column {self.name(column)!r}: the mean or the spread at site {self.sites[i]} is far from the others' "
                f"(mean {self.means[i, column]:.3g}; others {others}); it moves everybody's scaling. "
                "hint: ask the site; or data.scale=client, or guard.mean=median"
            )

    def middle_site(self) -> Array:
        """By column, the median of the sites' means."""
        return np.array([_median(self.means[:, k], self.many[:, k]) for k in range(self.means.shape[1])])


def middle_spread(sums: Sums) -> Array:
    """By column, the median of the sites' mean squares."""
    rows, squares = (np.stack([sums[s][k] for s in sorted(sums)]) for k in ("rows", "squares"))
    mean = squares / np.maximum(rows, 1)
    return np.array([_median(mean[:, k], rows[:, k]) for k in range(mean.shape[1])])


def _median(values: Array, many: Array) -> float:
    held = values[many > 0]
    return float(np.median(held)) if len(held) else 0.0


def _middle(values: Array) -> float:
    """The lower one of the two in the middle, so that of two sites the smaller counts."""
    return float(np.sort(values)[(len(values) - 1) // 2])
