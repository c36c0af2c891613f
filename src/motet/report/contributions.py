"""Contributions for a terminal and for a page: what each client published, how much others rely on it, what it is
served, and who is named for what.

Knows what a run recorded. Does not know how contributions are measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from motet.report.read import natural
from motet.text import aligned, printable

CENTRALITIES = {"pagerank": "PageRank", "authority": "authority", "hub": "hub", "betweenness": "betweenness"}
_NARROW = 76  # columns below which a table of values has fewer of its own
_LAST = 3  # rounds of the history in a terminal


def contributions_of(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was measured of contributions, or else what the method recorded; None where there is neither."""
    record = facts.get("contributions") or facts.get("record") or {}
    return dict(record) if record.get("trust") else None


def contributions_text(found: Mapping[str, Any] | None, width: int = 80) -> list[str]:
    """Tables and sentences: contributions are in equal parts, 1 is what everybody would have if all were alike."""
    if not found:
        return []
    noise = "arithmetic" in str(found.get("published"))
    note = ["simulated: noise of private models is arithmetic and protects nobody"] if noise else []
    library = f"private and meta-models: {printable(found['made_with'])}" if found.get("made_with") else ""
    said = [
        *how_lines(found),
        *published_lines(found),
        *([library] if library else []),
        *policy_lines(found),
        *named_lines(found),
        *note,
    ]
    first = value_table(found, width) if found.get("values") else _table(found)
    return ["", *first, "", *_central(found), "", *(line for s in said for line in wrapped(s, width))]


def wrapped(sentence: str, width: int) -> list[str]:
    """Lines of at most `width` characters; those after the first are indented."""
    return textwrap.wrap(sentence, max(width, 30), subsequent_indent="  ", break_on_hyphens=False)


def by_client(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each client: contribution in equal parts, centralities, own model, history."""
    measures = found.get("centralities") or {}
    given = measures.get("in_strength") or {}
    own = found.get("self_importance") or {}
    return [
        {
            "client": c,
            "contributes": given[c] * len(given),
            **{k: max(0.0, (measures.get(k) or {}).get(c, 0.0)) for k in CENTRALITIES},
            "own": own.get(c, 0.0),
            "history": history_of(found, c),
        }
        for c in sorted(given, key=natural)
    ]


def history_of(found: Mapping[str, Any], client: str) -> list[float]:
    """A client's contribution in each round, in equal parts."""
    return [shares.get(client, 0.0) * len(shares) for shares in found.get("history") or []]


def policy_lines(found: Mapping[str, Any]) -> list[str]:
    """What a threshold and versions do to whom; nothing where neither is used."""
    use = found.get("served") or {}
    clients: Mapping[str, Any] = use.get("clients") or {}
    lines = []
    if use.get("threshold"):
        lines.append(f"threshold {use['threshold']:g} of an equal part: {_shut_out(clients)}")
    if use.get("versions", 1) > 1:
        each = ", ".join(
            f"{printable(c)} {clients[c]['version']}"
            for c in sorted(clients, key=natural)
            if clients[c]["models"]
        )
        who = each or "nobody is served"
        lines.append(f"versions by contribution (1 has most noise, {use['versions']} least): {who}")
    return lines


def _shut_out(clients: Mapping[str, Any]) -> str:
    out = [c for c in sorted(clients, key=natural) if not clients[c]["models"]]
    said = (f"{printable(c)} contributes {clients[c]['contribution']:.2f} and is served nothing" for c in out)
    return "; ".join(said) or "all clients are served"


def named_lines(found: Mapping[str, Any]) -> list[str]:
    """Who is named for what, and which models are not used, with the reason."""
    named = sorted((found.get("named") or {}).items(), key=lambda p: natural(p[0]))
    refused = (found.get("refused") or {}).values()
    return [
        *(f"{printable(c)} is named: {printable(why)}" for c, why in named),
        *(f"refused: {printable(why)}" for why in refused),
    ]


# ---- contributions that were measured by replays ----


def value_table(found: Mapping[str, Any], width: int) -> list[str]:
    """Values with their stated errors, those who contribute most first; what a narrow terminal holds."""
    cells = [(printable(row[0])[:20], *row[1:]) for row in value_cells(found)]
    if width < _NARROW and "own rows" in cells[0]:
        at = cells[0].index("own rows")
        cells = [row[:at] + row[at + 1 :] for row in cells]
    return aligned(cells, right=range(1, len(cells[0])))


def value_cells(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The heads, then a row for each client."""
    rows = found["values"]
    shapley = any(r.get("value") is not None for r in rows.values())
    without = any(r.get("left_out") is not None for r in rows.values())
    head = ("client", *(["value", "±", "own rows"] if shapley else []), *(["left out", "interval"] * without))
    cells = [
        (
            c,
            *(
                [_number(r.get("value")), _number(r.get("error"), ""), _number(r.get("own"))]
                if shapley
                else []
            ),
            *([_number(r.get("left_out")), _interval(r)] if without else []),
        )
        for c, r in sorted(rows.items(), key=lambda p: (-rank_of(p[1]), natural(p[0])))
    ]
    return [head, *cells]


def rank_of(row: Mapping[str, Any]) -> float:
    """What clients are ordered by: the Shapley value, or what others lose without the client."""
    found = row.get("value") if row.get("value") is not None else row.get("left_out")
    return float(found) if found is not None else 0.0


def _number(value: float | None, sign: str = "+") -> str:
    return "–" if value is None else f"{value:{sign}.4f}"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row.get("left_out_low"), row.get("left_out_high")
    return "–" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def how_lines(found: Mapping[str, Any]) -> list[str]:
    """What the values are, and how they were found."""
    if not found.get("values"):
        return []
    worth = "fall of the loss" if found.get("by") == "loss" else "gain of the run's metric"
    lines = [
        f"value: {worth} of the {found.get('side')} model on other clients' validation rows, mean over clients; "
        "test rows are not used"
    ]
    if found.get("unmeasured"):
        who = ", ".join(map(printable, found["unmeasured"]))
        lines.append(f"on the validation rows of {who} this cannot be told: they are in no mean")
    if found.get("rounds"):
        cut = f", {found['cut_rounds']} of them cut" if found.get("cut_rounds") else ""
        lines.append(
            f"{found['way']}: {found['coalitions']:,} coalitions in {found['rounds']} rounds{cut}; ± holds for all "
            "clients at once with 99 % (0.0000: exact)"
        )
    if any(r.get("left_out") is not None for r in found["values"].values()):
        lines.append("left out: what others lose in a replay without the client; 95 % interval over clients")
    if found.get("noised"):
        lines.append(
            "updates carry the noise of differential privacy: nobody is named for noise, values are of noised updates, "
            "and what this measures on rows is no part of the run's epsilon"
        )
    if not found.get("same_bits", True):
        lines.append("the replay gave other bits than the run: values are of the replay")
    return lines


def cross_table(found: Mapping[str, Any], most: int = 8) -> list[str]:
    """Each client's model (row) on the validation rows of each site (column)."""
    matrix = found.get("cross_site") or {}
    owners = sorted(matrix, key=natural)[:most]
    if not owners:
        return []
    head = ("model of", *(printable(c)[:8] for c in owners))
    cells = [(printable(o)[:12], *(_score(matrix[o].get(s)) for s in owners)) for o in owners]
    return aligned([head, *cells], right=range(1, len(head)))


def _score(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.3f}"


def _table(found: Mapping[str, Any]) -> list[str]:
    rows = by_client(found)
    several = any(len(r["history"]) > 1 for r in rows)
    head = ("client", "contributes", "own model", *(["last rounds"] if several else []))
    cells = [
        (
            printable(r["client"])[:20],
            f"{r['contributes']:.2f}",
            f"{r['own']:.0%}",
            *([_last(r["history"])] if several else []),
        )
        for r in rows
    ]
    return aligned([head, *cells], right=range(1, len(head))) if cells else []


def _last(history: Sequence[float]) -> str:
    return " ".join(f"{v:.2f}" for v in history[-_LAST:])


def _central(found: Mapping[str, Any]) -> list[str]:
    rows = by_client(found)
    head = ("client", *CENTRALITIES.values())
    cells = [(printable(r["client"])[:20], *(f"{r[k]:.2f}" for k in CENTRALITIES)) for r in rows]
    return aligned([head, *cells], right=range(1, len(head))) if cells else []


def published_lines(found: Mapping[str, Any]) -> list[str]:
    published = sorted((found.get("published") or {}).items(), key=lambda p: natural(p[0]))
    return [
        f"{printable(c)} published {printable(p['what'])}"
        + (f" ({printable(p['made_with'])})" if p.get("made_with") else "")
        for c, p in published
    ]
