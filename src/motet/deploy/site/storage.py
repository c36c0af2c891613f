"""What a site stores: the rows of each run as all sites agreed, and client state, encrypted.

Layouts outlive the process, in the run's folder. Rows that changed since a run began are refused: their
partition into training, validation and test rows would be another.
Knows files, labels, layouts and a key. Does not know what is in a state or in a reply.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import get_args
from urllib.parse import quote

import numpy as np

from motet.atomic import write_atomically
from motet.checksums import BLANK, FIELD, is_whole, with_checksum
from motet.client.losses import Kind
from motet.core import Tree
from motet.data.federated import FederatedData
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.disclosure import said_at_home, with_enough_rows
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.split import TableSplit
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Label, Letter
from motet.errors import MotetError
from motet.wire import WireError, pack, unpack

_HISTORY = 2  # rounds whose versions stay, besides those that the server names
NONCE = 12  # bytes that make every encryption a different one
LAYOUT = "layout.motet"  # in a run's folder: the layout, and a hash of the rows that were laid out
_FILE = re.compile(r"(-?\d+)\.(\d+)\.keep")


BEGIN_ANEW = "`motet federation reset KIT` lets this site begin anew"


class EncryptedStateError(MotetError, ValueError):
    """Something that is stored at the site cannot be read."""


def site_key(path: Path) -> bytes:
    """The site's key, made at the first call: 32 random bytes that only the owner may read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(32))
    key = path.read_bytes()
    if len(key) != 32:
        raise EncryptedStateError(
            f"{path} holds {len(key)} bytes; a site's key has 32.\nhint: restore the site's own key"
        )
    return key


def sealed(key: bytes, content: bytes, about: bytes) -> bytes:
    """The content encrypted (AES-256-GCM), with what it is about sealed into it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, content, about)


def unsealed(key: bytes, content: bytes, about: bytes) -> bytes | None:
    """What was sealed with this key and is about this; None if it was damaged, or is something else."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(content[:NONCE], content[NONCE:], about)
    except (InvalidTag, ValueError):
        return None


class EncryptedState:
    """The versions that one client keeps in one run, one file for each.

    AES-256-GCM; run and label are sealed with the content, so that files cannot be swapped. Who reads the
    site's key reads everything: keep the key where the site keeps its other keys.
    """

    def __init__(self, folder: Path, run: str, key: bytes) -> None:
        self.folder, self.run, self.key = folder, run, key
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def labels(self) -> set[Label]:
        found = (_FILE.fullmatch(p.name) for p in self.folder.iterdir())
        return {(int(m[1]), int(m[2])) for m in found if m}

    def get(self, label: Label) -> bytes | None:
        """What was put under a label; None if nothing was."""
        try:
            stored = self.path(label).read_bytes()
        except FileNotFoundError:
            return None
        if (content := unsealed(self.key, stored, self._seal(label))) is None:
            raise EncryptedStateError(
                f"{self.path(label)} cannot be decrypted: it was damaged, or the site's key is another.\n"
                f"hint: restore the file or the site's key; {BEGIN_ANEW}"
            )
        return content

    def put(self, label: Label, content: bytes) -> None:
        write_atomically(self.path(label), sealed(self.key, content, self._seal(label)), private=True)

    def forget(self, labels: Iterable[Label]) -> None:
        for label in labels:
            self.path(label).unlink(missing_ok=True)

    def path(self, label: Label) -> Path:
        return self.folder / f"{label[0]}.{label[1]}.keep"

    def _seal(self, label: Label) -> bytes:
        return f"{self.run}/{label[0]}/{label[1]}".encode()


def outdated(labels: set[Label], letter: Letter) -> set[Label]:
    """Versions that nobody can go back to any more."""
    named = {letter.label, *letter.spare} | ({letter.base} if letter.base else set())
    return {v for v in labels - named if v[0] < letter.round - _HISTORY}


class SiteRows:
    """A site's rows, run by run. `data` is its table, or federated data with this client alone."""

    def __init__(
        self, folder: Path, data: FederatedData | SiteTable, policy: Policy | None = None, key: bytes = b""
    ) -> None:
        self.folder, self.policy = folder, policy or Policy()
        self.data = data
        if isinstance(data, SiteTable):
            self.data = dataclasses.replace(data, least_category=self.policy.least_category)
            self.split = TableSplit(folder, self.data, self.policy, key)
        self._last: tuple[str, FederatedData] | None = None
        self._fingerprint = ""

    @property
    def source(self) -> SiteTable:
        if isinstance(self.data, FederatedData):
            raise RefusedByPolicy("this site's rows are laid out already", "layout")
        return self.data

    def describe(self) -> Tree:
        """The table as others may know it."""
        with said_at_home("data"):
            return self.source.describe(self.policy, self.split.said())

    def measure(self, asked: Tree) -> Tree:
        """Sums of this site's columns, from which the federation's means and spreads are made. A letter says what
        kind of target the sites agreed on, and nothing else: the same answer each time."""
        if not isinstance(asked, dict) or set(asked) != {"kind"} or asked["kind"] not in get_args(Kind):
            raise RefusedByPolicy("sums are asked for with the kind of the target, and nothing else", "sums")
        with said_at_home("data"):
            return self.said_sums(asked["kind"])

    def said_sums(self, kind: str) -> Tree:
        """The sums that are said, the same ones every time; in the clear without numbers of rows that are hidden."""
        source, p = self.source, self.policy
        how = dataclasses.replace(p, counts=p.counted(masked=p.sums == "masked"))
        return self.split.sums(kind, lambda kind: source.measure(kind, how).tree())

    def own_sums(self, kind: str) -> tuple[list[str], ColumnSums]:
        """Names of this site's columns, and what a masked sum has of them; the target's come last if it is numbers."""
        if kind not in get_args(Kind):
            raise RefusedByPolicy("sums are asked for with the kind of the target", "sums")
        with said_at_home("data"):
            names = [name for name, _, _ in self.source.own_layout(kind).columns]
            if self.policy.sums == "masked" or self.policy.counts != "masked":
                tree = self.said_sums(kind)
                return names, ColumnSums(**{k: tree[k].double().numpy() for k in ColumnSums._fields})
            self.split.fix(kind)
            return names, self.source.measure(kind, dataclasses.replace(self.policy, counts=True))

    def use_layout(self, run: str, given: Tree, began: bool) -> FederatedData:
        """Lay the rows out for a run; one that began keeps the layout that it began with."""
        with said_at_home("layout"):
            layout, path = self.fitting(given), self.run_folder(run) / LAYOUT
            if began and path.exists():
                if pack(read_layout(path)["layout"]) != pack(layout.tree()):
                    raise RefusedByPolicy(f"run {run} began here with another layout of columns", "layout")
                return self.of(run)
            found = self.source.build_clients(layout, self.said(layout))
        with_enough_rows(found.clients_data[self.source.site], self.policy.least_rows)
        packed = pack({FIELD: BLANK, "layout": layout.tree(), "rows": found.fingerprint()})
        write_atomically(path, with_checksum(packed), private=True)
        self._last = run, found
        return found

    def fitting(self, given: Tree) -> Layout:
        """The layout that a letter holds, if it is one for this site's columns and for its own split."""
        try:
            layout = Layout.of(given)
        except WireError as e:
            raise RefusedByPolicy(f"a letter holds no layout of columns: {e}", "layout") from e
        self.split.check_kind(layout.kind)
        if layout.wants_sums and not self.policy.sums:
            raise RefusedByPolicy(
                "a layout scales columns or the target, and this site's policy lets no sums of columns leave.\n"
                "hint: data.scale=client",
                "layout",
            )
        self.source.check_layout(layout, self.said(layout))
        self.split.use(layout)
        return layout

    def said(self, layout: Layout) -> ColumnSums:
        """What this site says, or would say, of its columns; of none where its policy lets no sums leave."""
        if not self.policy.sums:
            return ColumnSums(*np.zeros((4, len(self.source.own_layout(layout.kind).columns) + 1)))
        tree = self.said_sums(layout.kind)
        return ColumnSums(**{k: tree[k].double().numpy() for k in ColumnSums._fields})

    def of(self, run: str) -> FederatedData:
        """This site's rows, as they were laid out for a run."""
        if isinstance(self.data, FederatedData):
            return self.data
        if self._last is None or self._last[0] != run:
            self._last = run, self._read_again(run, self.data)
        return self._last[1]

    def _read_again(self, run: str, source: SiteTable) -> FederatedData:
        """The rows of a run whose layout was agreed on before; they must be those that it began with."""
        path = self.run_folder(run) / LAYOUT
        if not path.exists():
            raise RefusedByPolicy(f"no layout of columns was agreed on for run {run}", "layout")
        given = read_layout(path)
        with said_at_home("data"):
            self.split.use(layout := Layout.of(given["layout"]))
            found = source.build_clients(layout, self.said(layout))
        if found.fingerprint() != given["rows"]:
            raise RefusedByPolicy(
                f"the rows of {source.path.name} changed since run {run} began.\n"
                "hint: restore the old file, or start a new run",
                "data",
            )
        return found

    def layout_hash(self, run: str) -> str:
        """Of the layout of a run's columns and of its rows."""
        if isinstance(self.data, FederatedData):
            self._fingerprint = self._fingerprint or self.data.fingerprint()
            return self._fingerprint
        path = self.run_folder(run) / LAYOUT
        return sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def run_folder(self, run: str) -> Path:
        """Where a run's files are: in this site's folder, whatever the run's name is."""
        folder = self.folder / "runs" / f"{quote(run, safe='')}.run"
        for place in (folder.parent.parent, folder.parent, folder):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


def read_layout(path: Path) -> Tree:
    """The layout that a run began with; one that was damaged is refused. Earlier versions wrote no checksum."""
    packed = path.read_bytes()
    try:
        if is_whole(packed) is not False:
            return unpack(packed)
    except WireError:
        pass
    raise EncryptedStateError(
        f"{path} is damaged: its checksum does not match.\nhint: restore the file; {BEGIN_ANEW}"
    )
