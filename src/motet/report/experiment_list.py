"""All experiments as a list: the paper, its table or figure, the scales, and what was run when and at which commit.

Knows plain data, one dictionary for each experiment. Does not read recipes and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from motet.text import duration

_GAP = 2  # columns between a name and what follows
_NARROW = 76  # below this, what an experiment shows stands under its name


def as_text(listed: Sequence[dict[str, Any]], width: int) -> str:
    """Experiments by paper, in lines of at most `width` columns."""
    names = max((len(e["name"]) for e in listed), default=0) + _GAP
    indent = names if width >= _NARROW else 4
    lines: list[str] = []
    for paper, some in groupby(sorted(listed, key=_paper), key=_paper):
        lines += ["", *wrap(paper or "no paper", width)]
        for one in some:
            lines += _entry(one, indent, width)
    return "\n".join([*lines, "", *wrap(_totals(listed), width)]).strip("\n")


def _paper(one: dict[str, Any]) -> str:
    paper: str = one["paper"]
    return paper


def _entry(one: dict[str, Any], indent: int, width: int) -> list[str]:
    """The name, beside or above what it shows and what was run."""
    said = [line for text in (one["shows"], state(one)) for line in wrap(text, width - indent - 2)]
    beside = len(one["name"]) + _GAP <= indent
    first = [f"  {one['name']:<{indent}}{said[0]}"] if beside else [f"  {one['name']}"]
    return first + [" " * (indent + 2) + line for line in said[beside:]]


def state(one: dict[str, Any]) -> str:
    """
    >>> state({"ran": {"desk": {"date": "2026-11-16", "commit": "05dbe42"}}, "scales": ["quick", "desk", "full"]})
    'desk ran 2026-11-16 at 05dbe42; not run: full'
    >>> state({"ran": {}, "scales": ["quick", "full"], "takes": {"full": 7200}})
    'not run: full (2.0 h)'
    """
    takes = one.get("takes", {})
    done = [f"{s} ran {r['date']} at {r['commit']}{_part(r)}" for s, r in one["ran"].items()]
    largest = max((one["scales"].index(s) for s in one["ran"]), default=0)
    left = one["scales"][largest + 1 :]
    left = [f"{s} ({duration(takes[s])})" if s in takes else s for s in left]
    return "; ".join([*done, *([f"not run: {', '.join(left)}"] if left else [])]) or "quick alone"


def _part(ran: dict[str, str]) -> str:
    return f" ({ran['part']})" if "part" in ran else ""


def _totals(listed: Sequence[dict[str, Any]]) -> str:
    ran = sum(bool(e["ran"]) for e in listed)
    return (
        f"{len(listed)} experiments, {ran} of them run beyond quick; every one has the scale quick: "
        "motet reproduce NAME"
    )
