"""Contributions for a terminal: what each client published, how much others rely on it, and who is named for what.

Knows what a run recorded. Does not know how contributions are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motet.report.read import natural
from motet.text import aligned, printable


def contributions_of(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a run recorded of contributions; None for methods without any."""
    record = facts.get("record") or {}
    return dict(record) if record.get("trust") else None


def contributions_text(found: Mapping[str, Any] | None) -> list[str]:
    """A table: contributions are in equal parts, 1 is what everybody would have if all were alike."""
    if not found:
        return []
    measures = found.get("centralities") or {}
    given = measures.get("in_strength") or {}
    head = ("client", "contributes", "PageRank", "own model")
    rows = [
        (
            printable(c)[:20],
            f"{given[c] * len(given):.2f}",
            f"{(measures.get('pagerank') or {}).get(c, 0.0):.2f}",
            f"{(found.get('self_importance') or {}).get(c, 0.0):.0%}",
        )
        for c in sorted(given, key=natural)
    ]
    table = aligned([head, *rows], right=[1, 2, 3]) if rows else []
    published = sorted((found.get("published") or {}).items(), key=lambda p: natural(p[0]))
    table += [f"{printable(c)} published {printable(p['what'])}" for c, p in published]
    named = [
        f"{printable(c)} is named: {printable(why)}" for c, why in sorted((found.get("named") or {}).items())
    ]
    refused = [printable(why) for why in (found.get("refused") or {}).values()]
    noise = "arithmetic" in str(found.get("published"))
    note = ["simulated: noise of private models is arithmetic and protects nobody"] if noise else []
    return ["", *table, *named, *(f"refused: {why}" for why in refused), *note]
