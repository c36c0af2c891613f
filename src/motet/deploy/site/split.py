"""A table's split into training, validation and test rows: chosen by the site once, and kept for good.

Who may choose the split, the columns' middles or the rows behind a sum can subtract two answers and read a row.
So none of it comes from a letter. The owner says val, test and seed when the site joins; the first run fixes
them, together with the kind of the target and the scaling, and binds them to the table's content. Sums are
measured once and answered from the file from then on. Another table or another split needs the owner
(`motet federation join KIT --new-split`), and enough rows that differ from the tables before.
Knows one table's split and its file. Does not know letters, nor other sites.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from msgspec import Struct
from msgspec.structs import asdict, replace

from motet.atomic import write_atomically
from motet.core import Tree
from motet.deploy.agreement.layout import Layout, Split
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.table import SiteTable
from motet.deploy.site.table_reading import TableReading
from motet.wire import pack, record, unpack

FILE = "split.motet"
_SUM = 32  # bytes of the checksum that the file begins with
_ASK = "hint: restore the old one, or begin anew: motet federation join KIT --data … --target … --new-split"


class FixedSplit(Struct, frozen=True):
    """What the file holds. Rows are known by keyed hashes, which tell nothing without the site's key."""

    table: str = ""  # a keyed hash of the table's content; "" before the first run, and after --new-split
    wish: Split = Split()  # as the owner chose it
    kind: str = ""  # of the target, as the first run read it
    scale: str = ""  # of the first run; "" before a layout was used
    rows: Any = ()  # {column: (training rows,) hashes of cells}
    earlier: tuple[Any, ...] = ()  # such hashes of tables before; (rows,) of whole rows in older files
    sums: Any = ()  # what was answered, and may be answered again
    said_under: str = ""  # the policy under which it was answered
    layouts: tuple[str, ...] = ()  # hashes of the layouts that were used, over all runs


class TableSplit:
    """The split of one site's table, and the file that keeps it."""

    def __init__(self, folder: Path, source: SiteTable, policy: Policy, key: bytes = b"") -> None:
        self.path, self.source, self.policy, self.key = folder / FILE, source, policy, key
        self._digest = ""

    def said(self) -> Split:
        """What others may know of it: the fixed split, or the one that the owner wants."""
        known = self.checked(read(self.path))
        return self.source.split._replace(scale=known.scale) if known.scale else self.source.split  # type: ignore[arg-type]

    def objection(self, anew: bool = False) -> str:
        """Why a run would be refused with this table and split, after `--new-split` if `anew`; nothing is written."""
        try:
            if anew:
                kind = self.source.labels(self.source.kind)[1]
                self.new_rows(replace(forgotten(read(self.path)), kind=kind))
            else:
                self.said()
        except RefusedByPolicy as e:
            return "" if anew and e.clause == "state" else str(e)  # a damaged file is set aside
        return ""

    def use(self, layout: Layout) -> FixedSplit:
        """Fix the split, if it is not, for a layout; refuse one that wants another."""
        asked = layout.splits.get(self.source.site)
        if asked is not None and asked[:3] != self.source.split[:3]:
            raise RefusedByPolicy(
                f"a layout wants the split {asked}, and this site's is {self.source.split}.\n"
                "hint: the site's owner chooses it: motet federation join KIT --val … --test … --seed …",
                "layout",
            )
        self.fix(layout.kind, layout.scale)
        return self.counted(sha256(pack(layout.tree())).hexdigest())

    def counted(self, layout: str) -> FixedSplit:
        """Count a layout that was not used before: what differs between two of them may tell of rows."""
        with self.lock():
            known = read(self.path)
            if layout in known.layouts:
                return known
            if len(known.layouts) >= self.policy.layouts:
                raise RefusedByPolicy(
                    f"{len(known.layouts)} different layouts of columns were used here, and this site's policy has "
                    f"layouts = {self.policy.layouts}",
                    "layout",
                )
            self.write(known := replace(known, layouts=(*known.layouts, layout)))
        return known

    def check_kind(self, kind: str) -> None:
        """Refuse a kind of target that this table cannot have, before anything is done with it."""
        known = self.checked(read(self.path))
        self.once("kind", kind, known.kind, self.source.kind)
        if kind not in self.source.kinds:
            raise RefusedByPolicy(
                f"a run asks for a target of the kind {kind!r}, and this site's has {self.source.kinds[0]!r}.\n"
                "hint: the site's owner chooses it: motet federation join KIT --data … --target … --kind …",
                "layout",
            )

    def fix(self, kind: str, scale: str = "") -> FixedSplit:
        """The split with the kind of the target, and the scaling, that the first run asks for."""
        self.check_kind(kind)
        with self.lock():
            before = known = self.checked(read(self.path))
            if not known.table:
                known = replace(known, table=self.digest(), wish=self.source.split, scale="")
            known = replace(
                known,
                kind=self.once("kind", kind, known.kind, self.source.kind),
                scale=self.once("scale", scale, known.scale, self.source.split.scale)
                if scale
                else known.scale,
            )
            if known.kind != before.kind:
                known = replace(known, rows=self.new_rows(known))
            if (known.kind, known.scale) != (before.kind, before.scale):
                self.write(known)
        return known

    def sums(self, kind: str, measure: Callable[[str], Tree]) -> Tree:
        """The sums of the site's columns: measured at the first call, and the same ones ever after."""
        p = self.policy
        known, under = self.fix(kind), f"{p.counts} {p.least_rows} {p.least_category} {p.round_sums}"
        under += " masked" if p.sums == "masked" else ""
        if known.sums == () or known.said_under != under:
            with self.lock():
                known = replace(read(self.path), sums=measure(kind), said_under=under)
                self.write(known)
        return known.sums

    # ---- what is checked ----

    def checked(self, known: FixedSplit) -> FixedSplit:
        """A fixed split is of this very table, and as the owner wants it."""
        if known.table and known.table != self.digest():
            raise RefusedByPolicy(
                f"the table {self.source.path.name}, or which of its columns are used, changed since its rows were "
                f"divided.\n{_ASK}",
                "data",
            )
        if known.table and known.wish != self.source.split:
            raise RefusedByPolicy(
                f"the table's rows are divided already: {known.wish}, scale {known.wish.scale}; "
                f"now the owner wants {self.source.split}, scale {self.source.split.scale}.\n{_ASK}",
                "data",
            )
        return known

    def once(self, what: str, asked: str, fixed: str, wish: str) -> str:
        """What was fixed, or what the owner wants, or else what is asked for."""
        right = fixed or ("" if wish == "auto" else wish)
        if right and asked != right:
            raise RefusedByPolicy(
                f"a run asks for the {what} {asked!r}, and this site's table has {right!r}: it is chosen once.\n"
                f"{_ASK}",
                "layout",
            )
        return asked

    def new_rows(self, known: FixedSplit) -> dict[str, torch.Tensor]:
        """Hashes of the training rows' cells; refused if they differ in few rows from those of a table before."""
        learned, least = self.source.learned(known.kind), self.policy.least_rows
        found = {
            self.keyed(c.encode()): self.cells(c, h[learned]) for c, h in self.source.cell_hashes().items()
        }
        for old in known.earlier:
            differ = self.different(found, old, learned)
            if 0 < differ < least:
                raise RefusedByPolicy(
                    f"{differ} training rows differ from a table of this site of which numbers left, and this "
                    f"site's policy has least_rows = {least}: the difference of two answers would tell of them.\n"
                    "hint: use the earlier table and split, or another --seed, or wait until more rows are new",
                    "rows",
                )
        return found

    def different(self, found: dict[str, torch.Tensor], old: Any, learned: np.ndarray) -> int:
        """In how many rows two tables differ, by the columns that both have; 0 if there are none of these."""
        if isinstance(old, torch.Tensor):  # of an older motet: whole rows
            return different_rows(self.hashes()[learned], old.numpy())
        common = sorted(set(found) & set(old))
        if not common:
            return 0
        return different_rows(*(joined([table[c].numpy() for c in common]) for table in (found, old)))

    def keyed(self, content: bytes) -> str:
        return blake2b(content, digest_size=8, key=self.key).hexdigest()

    def cells(self, column: str, hashes: np.ndarray) -> torch.Tensor:
        """(rows,) keyed hashes of a column's cells, int64."""
        values, place = np.unique(hashes, return_inverse=True)
        keyed = (blake2b(column.encode() + v.tobytes(), digest_size=8, key=self.key).digest() for v in values)
        return torch.from_numpy(np.frombuffer(b"".join(keyed), np.int64)[place])

    def hashes(self) -> np.ndarray:
        """(rows,) keyed hashes of whole rows, int64, as an older motet stored them."""
        keyed = (blake2b(h.tobytes(), digest_size=8, key=self.key).digest() for h in self.source.row_hashes())
        return np.frombuffer(b"".join(keyed), np.int64)

    def digest(self) -> str:
        """A keyed hash of the table's content."""
        if not self._digest:
            content = repr(
                (self.source.used, self.source.target, self.source.missing, self.source.kind)
            ).encode()
            if self.source.more != TableReading():
                content += repr(self.source.more).encode()
            content += self.source.row_hashes().tobytes()
            self._digest = hmac.digest(self.key, content, "sha256").hex()
        return self._digest

    # ---- the file ----

    def lock(self) -> FileLock:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileLock(self.path.with_suffix(".lock"), mode=0o600)

    def write(self, known: FixedSplit) -> None:
        write(self.path, known)


def write(path: Path, known: FixedSplit) -> None:
    content = pack(asdict(known))
    write_atomically(path, sha256(content).digest() + content, private=True)


def read(path: Path) -> FixedSplit:
    """What the file holds; an empty record where there is none."""
    if not path.exists():
        return FixedSplit()
    stored = path.read_bytes()
    if sha256(stored[_SUM:]).digest() != stored[:_SUM]:
        raise RefusedByPolicy(
            f"{path} is damaged.\nhint: restore it from a backup, or begin anew: --new-split", "state"
        )
    return record(unpack(stored[_SUM:]), FixedSplit, "split")


def begin_anew(folder: Path) -> str:
    """Forget the split, as only the owner may; the rows of which numbers left are remembered. Says what is lost."""
    if not (path := folder / FILE).exists():
        return ""
    try:
        known = read(path)
    except RefusedByPolicy:
        path.replace(aside := path.with_suffix(".damaged"))
        return f"{path} was damaged, and is {aside} now: nobody knows which rows numbers were said of before"
    write(path, forgotten(known))
    return ""


def forgotten(known: FixedSplit) -> FixedSplit:
    """Only the rows of which numbers left, and how many layouts were used."""
    left = () if isinstance(known.rows, tuple) else (known.rows,)
    return FixedSplit(earlier=(*known.earlier, *left), layouts=known.layouts)


def joined(columns: list[np.ndarray]) -> np.ndarray:
    """(rows,) one hash for each row of some columns."""
    rows = np.ascontiguousarray(np.column_stack(columns))
    parts = (blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(parts), np.int64)


def different_rows(a: np.ndarray, b: np.ndarray) -> int:
    """How many rows are in one of two tables and not in the other; a row may be in a table several times."""
    _, place = np.unique(np.concatenate([a, b]), return_inverse=True)
    return int(abs(np.bincount(place, np.repeat([1, -1], [len(a), len(b)]))).sum())
