"""What sites hide from the server before a run, by masked sums: means and spreads of columns, numbers of rows.

The server learns sums over sites, and of no column from fewer sites than a masked sum needs. It then cannot tell whose
numbers are far from the others', as it does where sites say their sums one by one.
Knows layouts and sums. Does not know masks, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from motet.data.federated import DataError
from motet.deploy.agreement.layout import Layout
from motet.deploy.agreement.schema import Agreement, LayoutColumn

_NUMBERS = 4  # of each column: rows, cells, sum, sum of squares about 0
_PARTS = ("train", "val", "test")


class ExactSum(Protocol):
    """Sums of numbers of sites, none of which is shown."""

    least: int  # sites in a sum

    def __call__(
        self, job: str, send: Mapping[str, object], sites: Sequence[str], many: int
    ) -> list[Fraction]:
        """Of so many numbers of each of these sites."""


@dataclass(frozen=True)
class ColumnGroup:
    """Columns that the same sites hold."""

    sites: tuple[str, ...]
    columns: list[str]


def groups_of(columns: Sequence[str], own: Mapping[str, Sequence[LayoutColumn]]) -> list[ColumnGroup]:
    """The columns by who holds them: all sites of a sum hold all of its columns, which sites check."""
    names, found = {s: {c[0] for c in own[s]} for s in own}, dict[tuple[str, ...], list[str]]()
    for column in columns:
        found.setdefault(tuple(s for s in sorted(own) if column in names[s]), []).append(column)
    return [ColumnGroup(sites, held) for sites, held in found.items()]


def masked_layout(layout: Layout, agreement: Agreement, summed: ExactSum | None) -> Layout:
    """The layout with means and spreads of all sites' training rows."""
    if summed is None:
        raise DataError(
            "sites let sums of their columns leave in masked sums alone, and this run is not masked.\n"
            "hint: guard.masked=true, or data.scale=client"
        )
    sites, names = tuple(sorted(agreement.own)), [name for name, _, _ in layout.columns]
    groups = groups_of(names, agreement.own)
    few = {name for g in groups if len(g.sites) < summed.least for name in g.columns}
    check_held(layout, few, summed.least)
    groups = [g for g in groups if len(g.sites) >= summed.least]
    if layout.kind == "numbers" and all(g.sites != sites for g in groups):
        groups.append(ColumnGroup(sites, []))
    found = np.zeros((len(names) + (layout.kind == "numbers"), _NUMBERS), dtype=object)
    for g in groups:
        target = layout.kind == "numbers" and g.sites == sites
        send = {"kind": layout.kind, "columns": g.columns, "target": target}
        places = [*map(names.index, g.columns), *([len(names)] if target else [])]
        sums = summed("measure", send, g.sites, _NUMBERS * len(places))
        found[places] = np.array(sums, dtype=object).reshape(-1, _NUMBERS)
    agreement.notes.append(
        "sums of columns are masked: nobody can tell whose numbers are far from the others'"
    )
    return with_moments(layout, found)


def check_held(layout: Layout, few: set[str], least: int) -> None:
    """Refuse columns that must be scaled and that too few sites hold for a masked sum."""
    if odd := [n for n, kind, _ in layout.columns if n in few and kind == "number" and layout.wants_sums]:
        raise DataError(
            f"fewer than {least} sites hold column {odd[0]!r}, and sums of columns are masked: "
            f"a masked sum needs {least} sites\n"
            "hint: data.features=common, or data.scale=client"
        )


def with_moments(layout: Layout, found: np.ndarray) -> Layout:
    """From rows, cells, sums and sums of squares about 0 of each column, which are exact."""
    rows, many, total, squares = found.T
    away = [q - t**2 / m if m else Fraction(0) for q, t, m in zip(squares, total, many, strict=True)]
    numbers = [np.array([float(v) for v in values]) for values in (rows, many, total, away)]
    return layout.with_means(numbers[1], numbers[2]).with_spread(numbers[0], np.maximum(numbers[3], 0.0))


def count_rows(agreement: Agreement, summed: ExactSum) -> None:
    """Numbers of rows of all sites together; by class, if all sites have all classes."""
    everybody = all(set(seen) == set(agreement.classes) for seen in agreement.seen.values())
    classes = list(agreement.classes) if everybody else []
    agreement.totals, by_class = counted(summed, agreement.sites, classes)
    agreement.total_classes = dict(zip(classes, by_class, strict=True))
    said = ", ".join(f"{agreement.totals[k]} {word}" for k, word in zip(_PARTS, _WORDS, strict=True))
    agreement.notes.append(
        f"numbers of rows are masked; {len(agreement.sites)} sites together have {said} rows"
    )


def counted(
    summed: ExactSum, sites: Sequence[str], classes: Sequence[str] = ()
) -> tuple[dict[str, int], list[int]]:
    """Training, validation and test rows of these sites together, and rows of each class."""
    found = [int(v) for v in summed("count", {"classes": list(classes)}, sites, len(_PARTS) + len(classes))]
    return dict(zip(_PARTS, found, strict=False)), found[len(_PARTS) :]


_WORDS = ("training", "validation", "test")
