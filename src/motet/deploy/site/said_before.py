"""What a site says before a run: its columns, their sums, its numbers of rows, in the clear or in masked sums.

A masked sum holds columns and classes that this site has, and no others: as every site of the sum checks that, and all
were asked the same, no column's sum is of fewer sites than the whole sum is.
Knows the site's rows and its policy. Does not know other sites, nor how letters are carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from motet.client import ClientData
from motet.core import Tree
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.agreement.site_replies import own_version
from motet.deploy.site.disclosure import class_counts
from motet.deploy.site.masking import SiteSums
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.storage import SiteRows
from motet.engines.letters import Letter, Reply
from motet.wire import WireError


class AskedSums(Struct, forbid_unknown_fields=True):
    """What a letter says that asks for masked sums of columns."""

    kind: str
    columns: list[str]
    target: bool  # whether the target's sums are wanted too, which come last


class SaidBefore:
    """One site's answers before a run."""

    def __init__(self, name: str, rows: SiteRows, policy: Policy, sums: SiteSums) -> None:
        self.name, self.rows, self.policy, self.sums = name, rows, policy, sums

    def answer(self, letter: Letter) -> Reply:
        """To a letter that asks for one of them."""
        if letter.job == "describe":
            return Reply(self.describe())
        return self.measure(letter) if letter.job == "measure" else self.count(letter)

    def describe(self) -> Tree:
        """The table as others may know it, and what of this site leaves in masked sums alone."""
        return self.rows.describe() | own_version()

    def measure(self, letter: Letter) -> Reply:
        """Sums of this site's columns."""
        if not self.policy.sums:
            raise RefusedByPolicy(
                "this site's policy lets no sums of columns leave.\nhint: data.scale=client", "sums"
            )
        if letter.masked:
            return Reply({"words": self.sums.exact(letter, self.column_numbers(letter.send))})
        if self.policy.sums == "masked":
            raise RefusedByPolicy(
                'this site\'s policy lets sums of columns leave in masked sums alone (sums = "masked")\n'
                "hint: guard.masked=true, or data.scale=client",
                "sums",
            )
        return Reply(self.rows.measure(letter.send))

    def column_numbers(self, send: Any) -> list[Fraction]:
        try:
            asked = msgspec.convert(send, AskedSums)
        except msgspec.ValidationError as e:
            raise WireError(f"no question for masked sums of columns: {e}") from e
        own, sums = self.rows.own_sums(asked.kind)
        place = {name: i for i, name in enumerate(own)}
        if odd := [c for c in asked.columns if c not in place]:
            raise RefusedByPolicy(
                f"a masked sum is to hold {odd[0]!r:.80}, which is no column of this site: others' sums of it would be "
                "seen with fewer sites than the sum has",
                "sums",
            )
        if len(set(asked.columns)) < len(asked.columns) or (asked.target and len(sums.rows) == len(own)):
            raise WireError("masked sums name a column twice, or want sums of a target of classes")
        return moments(sums, [*(place[c] for c in asked.columns), *([len(own)] if asked.target else [])])

    def count(self, letter: Letter) -> Reply:
        """Numbers of training, validation and test rows, and of rows of each class where all sites have all classes."""
        if not letter.masked:
            raise RefusedByPolicy("numbers of rows are asked for alone in masked sums", "counts")
        classes = (
            msgspec.convert(letter.send.get("classes"), list[str]) if isinstance(letter.send, dict) else None
        )
        federated = self.rows.of(letter.run)
        if classes is None or classes not in ([], list(federated.classes)):
            raise WireError("numbers of rows are asked for with the classes of the layout, or with none")
        return Reply(
            {"words": self.sums.exact(letter, self.rows_of(federated.clients_data[self.name], classes))}
        )

    def rows_of(self, own: ClientData, classes: Sequence[str]) -> list[Fraction]:
        """1, and nothing else, where the policy lets no numbers of rows leave: so much this site weighs."""
        if not self.policy.counts:
            return [Fraction(v) for v in (1, 0, 0, *[0] * len(classes))]
        parts = [own.n, len(own.val), len(own.test)]
        if not classes:
            return [Fraction(v) for v in parts]
        y = np.concatenate([part.take().y.numpy() for part in (own.train, own.val, own.test)])
        many = np.bincount(y, minlength=len(classes)).tolist()
        if min(many) == 0:
            raise RefusedByPolicy(
                "a masked sum is to count rows of a class that this site does not have: others' would be seen with "
                "fewer sites than the sum has",
                "counts",
            )
        return [Fraction(v) for v in (*parts, *class_counts(many, self.policy.least_rows))]


def moments(sums: ColumnSums, places: Sequence[int]) -> list[Fraction]:
    """Of each of these columns: rows, cells, sum, and sum of squares about 0, which can be summed over sites.

    >>> sums = ColumnSums(*np.array([[2.0], [2.0], [3.0], [0.5]]))  # of the cells 1 and 2
    >>> [int(v) for v in moments(sums, [0])]
    [2, 2, 3, 5]
    """
    found = list[Fraction]()
    for i in places:
        rows, many, total, squares = (Fraction(float(v[i])) for v in sums)
        found += [rows, many, total, squares + (total**2 / many if many else 0)]
    return found
