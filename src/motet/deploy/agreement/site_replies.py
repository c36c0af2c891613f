"""What sites reply before a run: whether it has the form that it must have, and fits what they said before.

A site may say anything. A reply that cannot be what was asked for is told from others by site, with the reason, so
that the run can go on without that site.
Knows forms, ranges and versions. Does not know how letters are carried, nor what becomes of the replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from motet.core import Tree
from motet.data.federated import DataError
from motet.deploy.agreement.schema import ColumnDescription, description_of
from motet.engines.letters import PROTOCOL
from motet.engines.site_scores import MOST_ROWS
from motet.errors import MotetError
from motet.text import printable
from motet.wire import WireError

MOST_COLUMNS = 100_000  # of a layout, those of categories included
_CATEGORIES = 200  # of one column; a site's own reader takes a column with more for names or dates
_CLASSES = 10_000
_LONGEST = 500  # letters of a name or a category
_WIDER = 50  # times the columns or classes of other sites, that one site's table may have
_OBEYED = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]"
)  # letters of control, halves of letters
_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, MotetError)
R = TypeVar("R")


class UnusableReplies(MotetError):
    """Replies that cannot be what was asked for; `why` has the reason for each site."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"site {s}: {reason}" for s, reason in why.items()))
        self.why = dict(why)


def each_site(replies: Mapping[str, Tree], read: Callable[[str, Tree], R]) -> dict[str, R]:
    """What `read` makes of each site's reply; all replies that it cannot read are said at once."""
    found: dict[str, R] = {}
    wrong: dict[str, str] = {}
    for site in sorted(replies):
        try:
            found[site] = read(site, replies[site])
        except _FAULTS as e:
            wrong[site] = printable(str(e))
    if wrong:
        raise UnusableReplies(wrong)
    return found


# ---- versions ----


def own_version() -> dict[str, Any]:
    """What a party says of its software when it describes its table."""
    try:
        return {"motet": version("motet"), "protocol": PROTOCOL}
    except PackageNotFoundError:
        return {"motet": "unknown", "protocol": PROTOCOL}


def same_protocol(site: str, tree: Tree) -> Tree:
    """The description without the versions that came with it, if the site speaks this server's protocol."""
    if not isinstance(tree, dict):
        raise WireError(f"site {site} sent something that is no description of a table")
    said, ours = tree.get("protocol", 0), own_version()
    if type(said) is not int or said != PROTOCOL:
        older = type(said) is not int or said < PROTOCOL
        which = ("too old", "the site's") if older else ("too new", "the server's")
        raise WireError(
            f"its motet is {which[0]} for this server: it has version {_words(tree.get('motet'))}, protocol "
            f"{_words(said)}, and the server has version {ours['motet']}, protocol {PROTOCOL}. "
            f"hint: update {which[1]} motet"
        )
    return {k: v for k, v in tree.items() if k not in ours}


def _words(said: Any) -> str:
    return printable(str(said), 40) if isinstance(said, str | int) else "unknown"


# ---- descriptions ----


def checked_description(site: str, tree: Tree) -> Tree:
    """What a site says of its table, if it can be true."""
    tree = same_protocol(site, tree)
    table = description_of(site, tree)
    names = [name for c in table.columns for name in _laid_out(c)]
    if len(names) > MOST_COLUMNS or len(set(names)) < len(names):
        raise DataError(f"it describes {len(names)} columns, {len(set(names))} of them different")
    if len(table.target.classes) > _CLASSES or len(set(table.target.classes)) < len(table.target.classes):
        raise DataError(f"it describes {len(table.target.classes)} classes")
    texts = [*names, table.target.name, *table.target.classes]
    if odd := [t for t in texts if not _is_text(t)]:
        raise DataError(
            f"a name in its table has more than {_LONGEST} letters, or some that cannot be shown: {odd[0]!r:.80}"
        )
    check_counts(table.counts, len(table.target.classes))
    return tree


def check_widths(described: Mapping[str, Tree]) -> None:
    """Refuse tables with far more columns or classes than the others have: every site would have to bear them."""
    columns = {s: sum(max(1, len(c["values"])) for c in t["columns"]) for s, t in described.items()}
    classes = {s: len(t["target"]["classes"]) for s, t in described.items()}
    wrong: dict[str, str] = {}
    for what, many in (("columns", columns), ("classes", classes)) if len(described) > 2 else ():
        usual = sorted(many.values())[(len(many) - 1) // 2]
        odd = [s for s, n in many.items() if n > _WIDER * max(usual, 20)]
        wrong |= {s: f"its table has {many[s]} {what}, and most tables have {usual} or fewer" for s in odd}
    if wrong:
        raise UnusableReplies(wrong)


def _laid_out(column: ColumnDescription) -> list[str]:
    if column.kind != "text":
        return [column.name]
    if len(column.values) > _CATEGORIES:
        raise DataError(f"column {column.name!r:.80} has {len(column.values)} categories")
    return [f"{column.name}={v}" for v in column.values]


def _is_text(name: str) -> bool:
    """Whether a name can be written into files and shown: no half letters, nothing that a terminal obeys."""
    return len(name) <= _LONGEST and not _OBEYED.search(name)


class TableCounts(Struct):
    """Numbers of rows of a table, as far as they leave a site."""

    rows: int = 0
    classes: list[int] = []


def check_counts(counts: Mapping[str, Any], classes: int) -> None:
    """Refuse numbers of rows that cannot be, or that do not fit the classes."""
    try:
        found = msgspec.convert(dict(counts), TableCounts)
    except msgspec.ValidationError as e:
        raise WireError(f"its numbers of rows are none: {e}") from e
    if not 0 <= found.rows <= MOST_ROWS or any(n < 0 for n in found.classes):
        raise WireError(
            f"it says that it has {min([found.rows, *found.classes], default=0)} to {found.rows} rows"
        )
    if len(found.classes) not in (0, classes) or sum(found.classes) > _more(found.rows):
        raise WireError(
            f"its numbers of rows of {len(found.classes)} classes, {sum(found.classes)} in all, do not fit "
            f"{classes} classes and {found.rows} rows"
        )


# ---- the layout's reply: numbers of rows that a site keeps to ----


class PartRows(Struct, forbid_unknown_fields=True):
    """Training, validation and test rows of a site."""

    train: int
    val: int
    test: int

    def counts(self) -> dict[str, int]:
        return {"train": self.train, "val": self.val, "test": self.test}


def part_rows(tree: Tree, described: int = 0) -> dict[str, int]:
    """A site's numbers of rows by part, {} where it lets none leave; they must fit those that it described."""
    if isinstance(tree, dict | tuple) and not tree:
        return {}
    try:
        found = msgspec.convert(tree if isinstance(tree, dict) else "", PartRows).counts()
    except msgspec.ValidationError as e:
        raise WireError(f"its numbers of training, validation and test rows are none: {e}") from e
    total = sum(found.values())
    if min(found.values()) < 0 or found["train"] < 1 or total > MOST_ROWS:
        raise WireError(
            f"it says that it has {found['train']} training, {found['val']} validation, {found['test']} test rows"
        )
    if described and not (total <= _more(described) and described <= _more(total)):
        raise WireError(f"it lays {total} rows out, and described {described}")
    return found


def _more(rows: int) -> float:
    """Numbers that a site rounds need not fit exactly."""
    return 1.1 * rows + 10


# ---- yes ----


def agreed(site: str, tree: Tree) -> None:
    """An offer's reply must say that the site takes part."""
    if not isinstance(tree, dict) or tree.get("accepted") is not True:
        raise WireError("it neither accepted nor refused the offer")
