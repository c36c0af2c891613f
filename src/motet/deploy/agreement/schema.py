"""The schema handshake: what sites' tables have in common, and what not, before anything trains.

    agreement = merge({"a": told_by_a, "b": told_by_b}, method="fedper")
    print(agreement.text())       # columns and classes, site by site
    agreement.check()             # raises with all that does not fit

Knows descriptions of tables. Does not know rows, nor how descriptions travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from motet.client.task import Kind
from motet.core import Tree
from motet.data.federated import DataError, refuse
from motet.data.targets import FEW
from motet.deploy.agreement.layout import Layout

Features = Literal["same", "common", "any"]
ANY_COLUMNS = ("stacking", "local")  # methods that can do with sites that hold different columns
_MOST = 100_000  # columns or categories that a site may describe


@dataclass(frozen=True)
class SchemaField:
    """One column of the federation, as its sites know it."""

    name: str
    kind: str  # number, flag, text
    values: tuple[str, ...]  # all categories of a text column, sorted
    sites: tuple[str, ...]  # who holds it


@dataclass
class Agreement:
    """What sites said, what can be made of it, and what cannot."""

    sites: tuple[str, ...]
    fields: list[SchemaField]
    kind: Kind
    classes: tuple[str, ...]
    seen: dict[str, tuple[str, ...]]  # the classes of each site
    counts: dict[str, Tree]  # rows of each site that tells them
    holes: bool  # whether some site has empty cells
    features: Features
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def check(self) -> Agreement:
        """Raise all that does not fit, at once."""
        refuse(self.problems)
        return self

    def layout(self, scale: str, seed: int, val: float, test: float) -> Layout:
        """The common layout, without statistics yet."""
        wanted = "federation" if scale == "auto" else scale
        kept = [f for f in self.fields if self.features == "any" or len(f.sites) == len(self.sites)]
        columns = [c for f in kept for c in _columns(f)]
        return Layout(tuple(columns), self.kind, self.classes, wanted, seed, val, test)

    def text(self) -> str:
        """A table for people: who holds which column, who has seen which class."""
        wide = max([len(f.name) for f in self.fields] + [len(c) for c in self.classes] + [6])
        names = dict(zip(self.sites, self.sites, strict=True))
        lines = [self._line(wide, "column", "kind", names)]
        lines.append("-" * len(lines[0]))
        for f in self.fields:
            kind = f"{f.kind} ({len(f.values)})" if f.values else f.kind
            lines.append(self._line(wide, f.name, kind, {s: "yes" for s in f.sites}))
        lines += ["", self._line(wide, "class", "", names)] if self.classes else []
        for c in self.classes:
            lines.append(self._line(wide, c, "", {s: "yes" for s in self.sites if c in self.seen[s]}))
        if self.counts:
            rows = {s: str(self.counts[s].get("rows", "?")) for s in self.sites}
            lines += ["", self._line(wide, "rows", "", rows)]
        return "\n".join([*lines, "", *self.notes, *self.problems]).rstrip()

    def _line(self, wide: int, name: str, kind: str, cells: Mapping[str, str]) -> str:
        description = "  ".join(cells.get(s, "-").ljust(max(len(s), 4)) for s in self.sites)
        return f"{name:<{wide}}  {kind:<9}  {description}".rstrip()


def merge(description: Mapping[str, Tree], method: str = "", features: Features = "same") -> Agreement:
    """What the sites' descriptions come to. `features`: all must hold the `same` columns, or the `common`
    ones are taken, or `any`. A method that bears different columns makes `same` mean `any`."""
    sites = tuple(sorted(description))
    for site in sites:
        check_description(site, description[site])
    if method in ANY_COLUMNS and features == "same":
        features = "any"
    problems: list[str] = []
    notes: list[str] = []
    fields = _fields(description, sites, problems, notes)
    kind, classes, seen = _targets(description, sites, problems, notes)
    _compare(fields, sites, features, method, problems, notes)
    counts = {s: description[s]["counts"] for s in sites if description[s]["counts"]}
    holes = any(description[s]["holes"] for s in sites)
    return Agreement(
        sites, fields, kind, classes, seen, counts if len(counts) == len(sites) else {}, holes, features,
        problems, notes,
    )  # fmt: skip


def check_description(site: str, t: Tree) -> None:
    """Refuse what is no description, whoever sent it."""
    shape = isinstance(t, dict) and set(t) == {"columns", "target", "auto", "holes", "counts"}
    if not shape or not isinstance(t["columns"], list) or not isinstance(t["target"], dict):
        raise DataError(f"site {site} sent something that is no description of a table")
    rows = [*t["columns"], t["target"]]
    fine = (
        len(rows) <= _MOST
        and all(isinstance(c, dict) and set(c) == {"name", "kind", "values"} for c in t["columns"])
        and set(t["target"]) == {"name", "kind", "classes"}
        and isinstance(t["counts"], dict)
        and all(isinstance(c["name"], str) and isinstance(c["kind"], str) for c in rows)
        and all(_texts(c["values"]) for c in t["columns"])
        and _texts(t["target"]["classes"])
    )
    known = fine and all(c["kind"] in ("number", "flag", "text") for c in t["columns"])
    if not known or t["target"]["kind"] not in ("classes", "numbers"):
        raise DataError(f"site {site} sent something that is no description of a table")


def _texts(values: Tree) -> bool:
    return isinstance(values, list) and len(values) <= _MOST and all(isinstance(v, str) for v in values)


def _fields(
    description: Mapping[str, Tree], sites: Sequence[str], problems: list[str], notes: list[str]
) -> list[SchemaField]:
    """Every column that some site holds, in the order in which sites name them."""
    found = {s: {c["name"]: c for c in description[s]["columns"]} for s in sites}
    fields = []
    for name in dict.fromkeys(n for s in sites for n in found[s]):
        who = tuple(s for s in sites if name in found[s])
        kinds = {k: [s for s in who if found[s][name]["kind"] == k] for k in ("number", "flag", "text")}
        kinds = {k: v for k, v in kinds.items() if v}
        if "text" in kinds and len(kinds) > 1:
            said = "; ".join(f"{k} at {', '.join(v)}" for k, v in kinds.items())
            problems.append(
                f"column {name!r} is not of one kind: {said}.\n"
                f"hint: make it the same at all sites, or leave it out everywhere (drop)"
            )
        elif len(kinds) > 1:
            notes.append(f"column {name!r} holds truth values at {', '.join(kinds['flag'])}; read as numbers")
        values = tuple(sorted({v for s in who for v in found[s][name]["values"]}))
        kind = next(iter(kinds)) if len(kinds) == 1 else "text" if "text" in kinds else "number"
        fields.append(SchemaField(name, kind, values, who))
    return fields


def _targets(
    description: Mapping[str, Tree], sites: Sequence[str], problems: list[str], notes: list[str]
) -> tuple[Kind, tuple[str, ...], dict[str, tuple[str, ...]]]:
    seen = {s: tuple(description[s]["target"]["classes"]) for s in sites}
    union = sorted({c for v in seen.values() for c in v}, key=_by_value)
    kinds = {s: description[s]["target"]["kind"] for s in sites}
    guessed = all(description[s]["auto"] for s in sites if kinds[s] == "classes")
    if guessed and ("numbers" in kinds.values() or len(union) > FEW):
        return "numbers", (), {s: () for s in sites}
    if len(set(kinds.values())) > 1:
        said = "; ".join(
            f"{k} at {', '.join(s for s in sites if kinds[s] == k)}" for k in ("classes", "numbers")
        )
        problems.append(f"the target is not of one kind: {said}.\nhint: join with --kind at all sites")
    for s in sites:
        if absent := [c for c in union if c not in seen[s]]:
            notes.append(f"site {s} has no rows of class {', '.join(absent)}")
    if len(union) == 1 and set(kinds.values()) == {"classes"}:
        problems.append(f"the target is {union[0]!r} in every row of every site: nothing to learn")
    return ("classes" if union else "numbers"), tuple(union), seen


def _by_value(name: str) -> tuple[int, float, str]:
    """Whole numbers in their own order, other names as text."""
    return (0, float(name), "") if name.lstrip("-").isdecimal() else (1, 0.0, name)


def _compare(
    fields: Sequence[SchemaField],
    sites: Sequence[str],
    features: Features,
    method: str,
    problems: list[str],
    notes: list[str],
) -> None:
    """Complain of columns that some sites lack, unless they may."""
    lacking = {s: [f.name for f in fields if s not in f.sites] for s in sites}
    said = [f"site {s} has no column {', '.join(map(repr, names))}" for s, names in lacking.items() if names]
    if features == "common" and not any(len(f.sites) == len(sites) for f in fields):
        problems.append("no column is held by all sites.\nhint: name columns alike, or use method=stacking")
    if not said:
        return
    if features == "same":
        who = f"{method} " if method else "the method "
        problems.append(
            "; ".join(said) + f", and {who}needs the same columns everywhere.\n"
            "hint: method=stacking bears different columns; data.features=common takes those that all hold"
        )
    elif features == "common":
        out = ", ".join(repr(f.name) for f in fields if len(f.sites) < len(sites))
        notes.append(f"left out, because not all sites hold them: {out}")
    else:
        notes += [f"{s}; it is zero there" for s in said]


def _columns(f: SchemaField) -> list[tuple[str, str, str]]:
    if f.kind == "text":
        return [(f"{f.name}={v}", "flag", f.name) for v in f.values]
    return [(f.name, f.kind, "")]
