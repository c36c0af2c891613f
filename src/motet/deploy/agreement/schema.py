"""What sites' tables have in common, and what not, before anything trains.

    agreement = merge({"a": description_of_a, "b": description_of_b}, method="fedper")
    print(agreement.text())       # columns and classes, site by site
    agreement.check()             # raises with all that does not fit

Knows descriptions of tables. Does not know rows, nor how descriptions are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from motet.client.losses import Kind
from motet.core import Tree
from motet.data.federated import DataError, refuse
from motet.data.table_features import indicator
from motet.data.table_files import bare_name
from motet.data.targets import FEW, by_value, foreign_classes
from motet.deploy.agreement.layout import Layout, Split
from motet.text import one_spelling
from motet.wire import WireError, record

Features = Literal["same", "common", "any"]
Hidden = Literal["sums", "counts", "scores"]
ColumnKind = Literal["number", "flag", "text"]
ANY_COLUMNS = ("stacking", "local")  # methods that can do with sites that hold different columns
_MOST = 100_000  # columns or categories that a site may describe
_LISTED = 20  # columns that a table for people lists one by one
Texts = Annotated[list[str], Meta(max_length=_MOST)]
LayoutColumn = tuple[str, Any, str]  # (name, number or flag, one-hot encoded from)


# ---- what a site sends ----


class ColumnDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """One column of a site's table; `values` are the categories of a text column."""

    name: str
    kind: ColumnKind
    values: Texts


class TargetDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """The column that is predicted."""

    name: str
    kind: Kind
    classes: Texts


class TableDescription(Struct, frozen=True):
    """A site's table as others may know it."""

    columns: Annotated[list[ColumnDescription], Meta(max_length=_MOST)]
    target: TargetDescription
    auto: bool  # whether the target's kind was guessed from numbers
    holes: bool  # whether cells are empty
    split: Split  # how the site divides its rows
    counts: dict[str, Any]  # numbers of rows; {} where the site's policy keeps them
    masked: list[Hidden]  # what leaves the site in masked sums alone


def description_of(site: str, tree: Tree) -> TableDescription:
    """What a site sent, if it is a description of a table."""
    try:
        return record(tree, TableDescription, "description of a table")
    except WireError as e:
        raise DataError(f"site {site} sent something that is no description of a table: {e}") from e


# ---- what comes of it ----


@dataclass(frozen=True)
class SchemaField:
    """One column of the federation, as its sites know it."""

    name: str
    kind: ColumnKind
    values: tuple[str, ...]  # all categories of a text column, sorted
    sites: tuple[str, ...]  # who holds it


@dataclass
class Agreement:
    """What sites sent, what can be made of it, and what cannot."""

    sites: tuple[str, ...]
    features: Features  # all sites must hold the same columns; or those are taken that all hold; or any
    counts: dict[str, dict[str, Any]]  # rows of each site; {} unless all sites say them
    holes: bool  # whether some site has empty cells
    fields: list[SchemaField] = field(default_factory=list)
    kind: Kind = "numbers"
    classes: tuple[str, ...] = ()
    seen: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the classes of each site
    own: dict[str, list[LayoutColumn]] = field(
        default_factory=dict
    )  # the columns of each site, as it measures
    splits: dict[str, Split] = field(default_factory=dict)  # of each site
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    part_rows: dict[str, dict[str, int]] = field(default_factory=dict)  # of each site, once it has the layout
    hidden: set[str] = field(default_factory=set)  # what some site lets leave in masked sums alone
    totals: dict[str, int] = field(
        default_factory=dict
    )  # rows of all sites together, where each one's are hidden
    total_classes: dict[str, int] = field(default_factory=dict)  # the same by class

    def check(self) -> Agreement:
        """Raise all that does not fit, at once."""
        refuse(self.problems)
        return self

    def layout(self, scale: str) -> Layout:
        """The common layout, without statistics yet."""
        kept = [f for f in self.fields if self.features == "any" or len(f.sites) == len(self.sites)]
        columns = [c for f in kept for c in _columns(f.name, f.kind, f.values)]
        fixed = {s.scale for s in self.splits.values()} - {"auto"}
        wanted: Any = (fixed.pop() if len(fixed) == 1 else "federation") if scale == "auto" else scale
        return Layout(tuple(columns), self.kind, self.classes, wanted, self.splits)

    def class_counts(self) -> dict[str, int]:
        """Rows of each class at all sites; {} unless all sites say them."""
        found: dict[str, int] = dict(self.total_classes)
        for site, counts in self.counts.items():
            many = counts.get("classes", [])
            if not isinstance(many, list) or len(many) != len(self.seen.get(site, ())):
                return {}
            for c, n in zip(self.seen[site], many, strict=True):
                found[c] = found.get(c, 0) + (n if type(n) is int else 0)
        return found

    def text(self) -> str:
        """A table for people: who holds which column, who has rows of which class."""
        wide = max([len(f.name) for f in self._listed()] + [len(c) for c in self.classes] + [6])
        names = dict(zip(self.sites, self.sites, strict=True))
        lines = [self._line(wide, "column", "kind", names)]
        lines.append("-" * len(lines[0]))
        for f in self._listed():
            kind = f"{f.kind} ({len(f.values)})" if f.values else f.kind
            lines.append(self._line(wide, f.name, kind, {s: "yes" for s in f.sites}))
        if many := len(self.fields) - len(self._listed()):
            lines.append(f"and {many} columns that all sites hold")
        lines += ["", self._line(wide, "class", "", names)] if self.classes else []
        for c in self.classes:
            lines.append(self._line(wide, c, "", {s: "yes" for s in self.sites if c in self.seen[s]}))
        if self.counts:
            rows = {s: str(self.counts[s].get("rows", "?")) for s in self.sites}
            lines += ["", self._line(wide, "rows", "", rows)]
        return "\n".join([*lines, "", *self.notes, *self.problems]).rstrip()

    def _listed(self) -> list[SchemaField]:
        """All columns if they are few, else those that some site lacks."""
        if len(self.fields) <= _LISTED:
            return self.fields
        return [f for f in self.fields if len(f.sites) < len(self.sites)]

    def _line(self, wide: int, name: str, kind: str, cells: Mapping[str, str]) -> str:
        by_site = "  ".join(cells.get(s, "-").ljust(max(len(s), 4)) for s in self.sites)
        return f"{name:<{wide}}  {kind:<9}  {by_site}".rstrip()

    # ---- how it is made ----

    def add_splits(self, tables: Mapping[str, TableDescription]) -> None:
        """Each site's own division of its rows, and its columns in the order in which it measures them."""
        self.splits = {s: tables[s].split for s in self.sites}
        self.own = {
            s: [x for c in tables[s].columns for x in _columns(c.name, c.kind, c.values)] for s in self.sites
        }
        if odd := [s for s in self.sites if not self.splits[s].fine]:
            self.problems.append(f"site {odd[0]} leaves no rows for training")

    def note_splits(self, wanted: Split) -> None:
        """Say which sites divide their rows in another way than a recipe has it, and whose scaling does not fit."""
        for site, split in self.splits.items():
            if split[:3] != wanted[:3]:
                self.notes.append(
                    f"site {site} divides its rows in its own way: {split}; the recipe: {wanted}"
                )
        fixed = {s: split.scale for s, split in self.splits.items() if split.scale != "auto"}
        if len({*fixed.values()} | ({wanted.scale} - {"auto"})) > 1:
            said = ", ".join(f"{scale} at {site}" for site, scale in fixed.items())
            self.problems.append(
                f"data.scale is {wanted.scale}, and sites have fixed theirs: {said}.\n"
                "hint: name the sites' own with data.scale=…, or ask their owners for a new split"
            )

    def add_fields(self, tables: Mapping[str, TableDescription]) -> None:
        """Every column that some site holds, in the order in which sites name them."""
        found = {s: {c.name: c for c in tables[s].columns} for s in self.sites}
        for name in dict.fromkeys(n for s in self.sites for n in found[s]):
            holders = {s: found[s][name] for s in self.sites if name in found[s]}
            values = tuple(sorted({v for c in holders.values() for v in c.values}))
            self.fields.append(SchemaField(name, self._kind_of(name, holders), values, tuple(holders)))
        self._place_indicators()

    def _place_indicators(self) -> None:
        """Columns that say where cells of another one are missing come last, and all who hold the other hold them: at a
        site without missing cells they are 0."""
        sites = {indicator(f.name): f.sites for f in self.fields}
        some = {f.name: replace(f, sites=sites[f.name]) for f in self.fields if f.name in sites}
        rest = [f for f in self.fields if f.name not in sites]
        self.fields = rest + [some[indicator(f.name)] for f in rest if indicator(f.name) in some]

    def _kind_of(self, name: str, holders: Mapping[str, ColumnDescription]) -> ColumnKind:
        """The kind of a column; truth values and numbers together are numbers, text goes with nothing else."""
        kinds = _sites_by({s: c.kind for s, c in holders.items()}, ("number", "flag", "text"))
        if len(kinds) == 1:
            return next(iter(holders.values())).kind
        if "text" not in kinds:
            where = ", ".join(kinds["flag"])
            self.notes.append(f"column {name!r} holds truth values at {where}; read as numbers")
            return "number"
        self.problems.append(
            f"column {name!r} is not of one kind: {_where(kinds)}.\n"
            "hint: make it the same at all sites, or leave it out everywhere (drop)"
        )
        return "text"

    def add_target(self, tables: Mapping[str, TableDescription]) -> None:
        """What is predicted; numbers that few sites take for classes are numbers."""
        targets = {s: tables[s].target for s in self.sites}
        self.seen = {s: tuple(t.classes) for s, t in targets.items()}
        if spelled := one_spelling(sorted({c for v in self.seen.values() for c in v})):
            self.seen = {s: tuple(spelled[c] for c in v) for s, v in self.seen.items()}
            self.notes.append("sites write yes and no of the target in several ways: read as two classes")
        union = sorted({c for v in self.seen.values() for c in v}, key=by_value)
        kinds = _sites_by({s: t.kind for s, t in targets.items()}, ("classes", "numbers"))
        guessed = all(tables[s].auto for s in kinds.get("classes", ()))
        if guessed and ("numbers" in kinds or len(union) > FEW):
            self.seen = {s: () for s in self.sites}
            return
        self.kind, self.classes = "classes" if union else "numbers", tuple(union)
        if len(kinds) > 1:
            where = _where(kinds)
            self.problems.append(
                f"the target is not of one kind: {where}.\nhint: join with --kind at all sites"
            )
        elif len(union) == 1:
            self.problems.append(f"the target is {union[0]!r} in every row of every site: nothing to learn")
        if foreign := foreign_classes(self.seen, "site"):
            self.problems.append(
                f"{foreign}.\nhint: name classes alike: change the target's values in the site's table, then join with "
                "--data … --target … --new-split"
            )
        self._note_absent_classes()

    def _note_absent_classes(self) -> None:
        for site, seen in self.seen.items():
            if absent := [c for c in self.classes if c not in seen]:
                self.notes.append(f"site {site} has no rows of class {', '.join(absent)}")

    def compare_columns(self, method: str) -> None:
        """Complain of columns that some sites lack, unless they may."""
        lacking = {s: [f.name for f in self.fields if s not in f.sites] for s in self.sites}
        lacks = [f"site {s} has no column {', '.join(map(repr, n))}" for s, n in lacking.items() if n]
        all_hold = [f for f in self.fields if len(f.sites) == len(self.sites)]
        if self.features == "common" and not all_hold:
            self.problems.append(
                "no column is held by all sites.\nhint: name columns alike, or use method=stacking"
            )
        if not lacks:
            return
        if self.features == "same":
            self.problems.append(
                f"{'; '.join(lacks)}, and {method or 'the method'} needs the same columns everywhere.\n"
                f"hint: {self._one_column()}method=stacking bears different columns; data.features=common takes those "
                "that all hold; data.features=any takes all, and a column is zero where it is not held"
            )
        elif self.features == "common":
            out = ", ".join(repr(f.name) for f in self.fields if f not in all_hold)
            self.notes.append(f"left out, because not all sites hold them: {out}")
        else:
            self.notes += [f"{s}; it is zero there" for s in lacks]

    def _one_column(self) -> str:
        """Names of columns that differ in case, spaces and underscores, for a hint."""
        found: dict[str, list[str]] = {}
        for f in self.fields:
            found.setdefault(bare_name(f.name), []).append(f.name)
        pairs = [" and ".join(map(repr, sorted(names))) for names in found.values() if len(names) > 1]
        return f"{', '.join(pairs)} may be one column; " if pairs else ""


def merge(descriptions: Mapping[str, Tree], method: str = "", features: Features = "same") -> Agreement:
    """What the sites' descriptions come to. `features`: all must hold the `same` columns, or the `common`
    ones are taken, or `any`. A method that bears different columns makes `same` mean `any`."""
    tables = {site: description_of(site, descriptions[site]) for site in sorted(descriptions)}
    if method in ANY_COLUMNS and features == "same":
        features = "any"
    counts = {s: t.counts for s, t in tables.items() if t.counts}
    found = Agreement(
        tuple(tables),
        features,
        counts if len(counts) == len(tables) else {},
        any(t.holes for t in tables.values()),
    )
    found.hidden = {what for t in tables.values() for what in t.masked}
    found.add_splits(tables)
    found.add_fields(tables)
    found.add_target(tables)
    found.compare_columns(method)
    return found


def _sites_by(kinds: Mapping[str, str], order: tuple[str, ...]) -> dict[str, list[str]]:
    """Sites of each kind that occurs, in the order of kinds given."""
    found = {kind: [s for s, k in kinds.items() if k == kind] for kind in order}
    return {kind: sites for kind, sites in found.items() if sites}


def _where(kinds: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{kind} at {', '.join(sites)}" for kind, sites in kinds.items())


def _columns(name: str, kind: str, values: Sequence[str]) -> list[LayoutColumn]:
    if kind == "text":
        return [(f"{name}={v}", "flag", name) for v in values]
    return [(name, kind, "")]
