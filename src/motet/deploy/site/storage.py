"""What a site stores: the rows of each run as all sites agreed, and client state, encrypted.

Layouts outlive the process, in the run's folder. Rows that changed since a run began are refused: their
partition into training, validation and test rows would be another.
Knows files, labels, layouts and a key. Does not know what is in a state or in a reply.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from motet.atomic import write_atomically
from motet.core import Tree
from motet.data.federated import FederatedData
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.policy import RefusedByPolicy
from motet.deploy.site.table import SiteTable
from motet.engines.letters import Label
from motet.errors import MotetError
from motet.wire import WireError, pack, unpack

_NONCE = 12  # bytes that make every encryption a different one
_LAYOUT = "layout.motet"  # in a run's folder: the layout, and a hash of the rows that were laid out
_FILE = re.compile(r"(-?\d+)\.(\d+)\.keep")


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


class EncryptedState:
    """The versions that one client keeps in one run, one file for each.

    AES-256-GCM; run and label are sealed with the content, so that files cannot be swapped. Who reads the
    site's key reads everything: keep the key where the site keeps its other keys.
    """

    def __init__(self, folder: Path, run: str, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.folder, self.run, self.lock = folder, run, AESGCM(key)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def labels(self) -> set[Label]:
        found = (_FILE.fullmatch(p.name) for p in self.folder.iterdir())
        return {(int(m[1]), int(m[2])) for m in found if m}

    def get(self, label: Label) -> bytes | None:
        """What was put under a label; None if nothing was."""
        from cryptography.exceptions import InvalidTag

        try:
            sealed = self._path(label).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return self.lock.decrypt(sealed[:_NONCE], sealed[_NONCE:], self._seal(label))
        except InvalidTag:
            raise EncryptedStateError(
                f"{self._path(label)} cannot be decrypted: it was damaged, or the site's key is another.\n"
                "hint: restore the site's key"
            ) from None

    def put(self, label: Label, content: bytes) -> None:
        nonce = os.urandom(_NONCE)
        sealed = nonce + self.lock.encrypt(nonce, content, self._seal(label))
        write_atomically(self._path(label), sealed, private=True)

    def forget(self, labels: Iterable[Label]) -> None:
        for label in labels:
            self._path(label).unlink(missing_ok=True)

    def _path(self, label: Label) -> Path:
        return self.folder / f"{label[0]}.{label[1]}.keep"

    def _seal(self, label: Label) -> bytes:
        return f"{self.run}/{label[0]}/{label[1]}".encode()


class SiteRows:
    """A site's rows, run by run. `data` is its table, or federated data with this client alone."""

    def __init__(self, folder: Path, data: FederatedData | SiteTable) -> None:
        self.folder, self.data = folder, data
        self._last: tuple[str, FederatedData] | None = None
        self._fingerprint = ""

    @property
    def source(self) -> SiteTable:
        if isinstance(self.data, FederatedData):
            raise RefusedByPolicy("this site's rows are laid out already", "layout")
        return self.data

    def measure(self, asked: Tree) -> Tree:
        """Sums of columns, from which the federation's means and spreads are made."""
        if not isinstance(asked, dict) or set(asked) != {"layout", "middle"}:
            raise WireError("sums are asked for with a layout and a middle")
        return self.source.measure(Layout.of(asked["layout"]), asked["middle"])

    def use_layout(self, run: str, given: Tree, began: bool) -> FederatedData:
        """Lay the rows out for a run; one that began keeps the layout that it began with."""
        layout, path = Layout.of(given), self.run_folder(run) / _LAYOUT
        if began and path.exists():
            if pack(unpack(path.read_bytes())["layout"]) != pack(layout.tree()):
                raise RefusedByPolicy(f"run {run} began here with another layout of columns", "layout")
            return self.of(run)
        found = self.source.build_clients(layout)
        packed = pack({"layout": layout.tree(), "rows": found.fingerprint()})
        write_atomically(path, packed, private=True)
        self._last = run, found
        return found

    def of(self, run: str) -> FederatedData:
        """This site's rows, as they were laid out for a run."""
        if isinstance(self.data, FederatedData):
            return self.data
        if self._last is None or self._last[0] != run:
            self._last = run, self._read_again(run, self.data)
        return self._last[1]

    def _read_again(self, run: str, source: SiteTable) -> FederatedData:
        """The rows of a run whose layout was agreed on before; they must be those that it began with."""
        path = self.run_folder(run) / _LAYOUT
        if not path.exists():
            raise RefusedByPolicy(f"no layout of columns was agreed on for run {run}", "layout")
        given = unpack(path.read_bytes())
        found = source.build_clients(Layout.of(given["layout"]))
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
        path = self.run_folder(run) / _LAYOUT
        return sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def run_folder(self, run: str) -> Path:
        """Where a run's files are: in this site's folder, whatever the run's name is."""
        folder = self.folder / "runs" / f"{quote(run, safe='')}.run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
