"""A site's safe: what a client keeps between asks, encrypted at rest, one file for each version.

A file is put in place in one go (written beside, flushed to the disk, renamed), so that a crash leaves all
of it or nothing of it. AES-256-GCM; run and label are sealed with the content, so that files cannot be
swapped. Who reads the site's key reads everything: keep the key where the site keeps its other keys.
Knows files, labels and a key. Does not know what is in a version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from motet.engines.letters import Label
from motet.errors import MotetError
from motet.files import write_atomically

_NONCE = 12  # bytes that make every encryption a different one
_FILE = re.compile(r"(-?\d+)\.(\d+)\.keep")


class EncryptedStateError(MotetError, ValueError):
    """Something in the safe cannot be read."""


def site_key(path: Path) -> bytes:
    """The site's key, made at the first call: 32 random bytes that only the owner may read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(32))
    key = path.read_bytes()
    if len(key) != 32:
        raise EncryptedStateError(
            f"{path} holds {len(key)} bytes; a site's key has 32.\nhint: bring the site's own key back"
        )
    return key


class EncryptedState:
    """The versions that one client keeps in one run."""

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
                "hint: bring the site's key back"
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
