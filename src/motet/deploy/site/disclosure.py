"""Which numbers about a site's rows may leave: none that stands for few rows, no counts where they stay, rounded
where the policy says so.

Statistical offices call this disclosure control. The rules look at the rows and the policy alone, never at a
letter, so that repeated questions get the same answer.
Knows numbers and the policy. Does not know letters, nor what numbers are used for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from motet.client import Batch, ClientData
from motet.core import Tree
from motet.data.federated import DataError
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.site.policy import Policy, RefusedByPolicy

_MOST = 0.5  # share of one cell in how far all cells are from the middle one
_FINE = 32  # rounded means are multiples of about a 32nd of the column's spread
_STEPS = 16  # rounded spreads are powers of the 16th root of 2, some 4 % apart


@contextmanager
def said_at_home(clause: str) -> Iterator[None]:
    """Errors inside may hold cells and names of files: they become refusals, of which only the clause leaves."""
    try:
        yield
    except (DataError, OSError) as e:
        raise RefusedByPolicy(str(e), clause) from e


# ---- rows behind a number ----


def with_enough_rows(client_data: ClientData, least: int) -> ClientData:
    """The rows that verbs see. Few training rows are refused. Few validation rows are left out: a verb may send
    a loss of them."""
    check_rows(client_data.n, least, "training rows")
    if not 0 < len(client_data.val) < least:
        return client_data
    val = client_data.val.take()
    return replace(client_data, val=Batch(val.x[:0], val.y[:0], val.live[:0]))


def check_scored(client_data: ClientData, parts: Sequence[str], least: int) -> None:
    """Refuse scores of a part with few rows, or none."""
    for part in parts:
        check_rows(len(getattr(client_data, part)), least, f"{part} rows")


def check_rows(many: int, least: int, what: str) -> None:
    if many < least:
        raise RefusedByPolicy(
            f"there are {many} {what}, and this site's policy has least_rows = {least}: "
            "no number that stands for fewer rows leaves",
            "rows",
        )


# ---- counts ----


def class_counts(counts: Sequence[int], least: int) -> list[int]:
    """Rows of each class. If one of them is below the least number, none is said as it is: with the others exact,
    the rare one could be computed from the number of all rows. A rare class is then said to have 1 row, or half of
    the least number; others are rounded down.

    >>> class_counts([97, 3], 10), class_counts([60, 40], 10)
    ([90, 1], [60, 40])
    """
    if min(counts, default=least) >= least:
        return list(counts)
    return [_coarse(n, least) or (least // 2 if n >= least // 2 else min(n, 1)) for n in counts]


def _coarse(n: float, least: int) -> int:
    """Rounded down to a multiple."""
    return int(n // least) * least


def has_rare_class(client_data: ClientData, least: int) -> bool:
    """Whether a class has fewer than `least` of all rows, so that numbers of classes are not said as they are."""
    y = np.concatenate([part.y.numpy() for part in (client_data.train, client_data.val, client_data.test)])
    return bool((np.unique(y, return_counts=True)[1] < least).any())


def coarse_scores(scores: Tree, side: str = "") -> Tree:
    """Scores of classes from which no number of rows of a class follows: shares to a hundredth, those of the constant
    to a tenth, and pairs of rows as if the rarest class had one row."""
    if not isinstance(scores, dict) or "n" not in scores:
        return {k: coarse_scores(v, k) for k, v in scores.items()}
    digits = 1 if side == "constant" else 2
    found = {k: float(v) for k, v in scores.items()}
    coarse = {
        k: round(v, digits) if math.isfinite(v) else v for k, v in found.items() if k not in ("n", "own")
    }
    if math.isfinite(coarse["loss"]):  # a wrong row costs log 2 and more, also after rounding
        coarse["accuracy"] = min(1.0, max(coarse["accuracy"], 1 - coarse["loss"] / math.log(2)))
    coarse["pairs"] = min(found["pairs"], max(found["n"] - 1, 0.0))
    return {k: torch.tensor(coarse.get(k, v), dtype=scores[k].dtype) for k, v in found.items()}


def scores_to_say(scores: Tree, own: ClientData, kind: str, policy: Policy, masked: bool) -> Tree:
    """Scores as they leave, in the clear or `masked`."""
    if kind == "classes" and (not policy.counted(masked) or has_rare_class(own, policy.least_rows)):
        scores = coarse_scores(scores)
    return scores if policy.counted(masked) else without_counts(scores)


def without_counts(scores: Tree) -> Tree:
    """Scores whose numbers of rows, and of pairs of rows, are 1: every site weighs the same."""
    if isinstance(scores, dict):
        return {k: _as_one(v) if k in ("n", "pairs") else without_counts(v) for k, v in scores.items()}
    return scores


def _as_one(many: Any) -> Any:
    """1 for any number above 0."""
    return (many > 0).to(many.dtype) if isinstance(many, torch.Tensor) else many


# ---- sums of columns ----


def column_sums(z: np.ndarray, groups: Sequence[str], policy: Policy) -> ColumnSums:
    """What may be said of columns of training rows (n, columns); NaN is an empty cell. `groups` are the text columns
    that flags were encoded from, "" for others. A group is said whole or not at all: the rows of one category are
    those that the others leave."""
    check_rows(len(z), policy.least_rows, "training rows")
    said = np.array([_many_behind(column, policy.least_rows) for column in z.T], bool)
    hidden = {g for g, fine in zip(groups, said, strict=True) if g and not fine}
    said &= np.array([g not in hidden for g in groups])
    sums = ColumnSums(*(np.where(said, v, 0.0) for v in ColumnSums.measured(z)))
    if policy.round_sums or not policy.counts:  # an exact mean of whole numbers tells how many they are
        sums = rounded(sums, policy.least_rows)
    return sums if policy.counts else _as_one_row(sums)


def _many_behind(column: np.ndarray, least: int) -> bool:
    """Whether enough rows are behind a column's sums: enough cells, enough that differ from the most frequent value,
    and none that is most of what cells differ by. In a column of zeros and one 37.5, the sum is a cell; with one
    cell of a million among small ones, it is nearly one."""
    cells = np.sort(column[~np.isnan(column)])
    if len(cells) < least:
        return False
    starts = np.flatnonzero(np.append(True, cells[1:] != cells[:-1]))
    others = len(cells) - np.diff(np.append(starts, len(cells))).max()
    away = abs(cells - cells[len(cells) // 2])
    return bool(others == 0 or least == 1 or (others >= least and away.max() <= _MOST * away.sum()))


def rounded(sums: ColumnSums, least: int) -> ColumnSums:
    """Means to about a 64th of the column's spread, spreads to 2 %, numbers of cells to multiples of the least."""
    there = sums.many > 0
    spread = np.sqrt(sums.squares / np.maximum(sums.many, 1))
    wide = spread > 0
    exponent = np.log2(np.where(wide, spread, 1.0))
    step = 2.0 ** np.floor(exponent) / _FINE
    mean = np.where(wide, np.round(sums.mean / step) * step, sums.mean)
    coarse = np.where(wide, 2.0 ** (np.round(exponent * _STEPS) / _STEPS), 0.0)
    many, rows = (np.where(there, [_coarse(n, least) for n in v], 0.0) for v in (sums.many, sums.rows))
    return ColumnSums(rows, many, mean * many, coarse**2 * many)


def _as_one_row(sums: ColumnSums) -> ColumnSums:
    """Means and variances, as if of one row: nothing tells how many there are."""
    there = (sums.many > 0).astype(float)
    return ColumnSums(there, there, sums.mean * there, sums.squares / np.maximum(sums.rows, 1))
