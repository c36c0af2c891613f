"""Files that a site was sent, such as the published models of others: each is stored once, encrypted, by its sha256.

The store has a largest size and a largest number of files. Files that no letter has named for longest are forgotten
first; one that is gone, or damaged, is asked for again. Only what was asked for is taken.
Knows files, hashes and a key. Does not know what is in a file, nor letters.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from motet.atomic import write_atomically
from motet.core import Tree
from motet.deploy.site.policy import RefusedByPolicy
from motet.deploy.site.storage import NONCE, sealed, unsealed
from motet.wire import LEAST, FileName, filled, names_in

_MORE = NONCE + 16  # bytes by which an encrypted file is longer than what it holds

_AT_ONCE = 500  # files that are asked for at once
_MOST = 10_000  # files in the store: listing more takes longer than a letter may
_BLOCK = 4096  # bytes that a disk gives at once


class LacksFiles(RefusedByPolicy):
    """A letter names files that are not here; the server is told which, and brings them."""

    def __init__(self, names: Sequence[FileName]) -> None:
        size = sum(n.size for n in names)
        super().__init__(f"{len(names)} files with {size:,} bytes are not here", "files")
        self.asked_for = [n.sha256 for n in names[:_AT_ONCE]]


class StoredFiles:
    """The files of one site, for all its runs; `most` bytes at once."""

    def __init__(self, folder: Path, key: bytes, most: int) -> None:
        self.folder, self.key, self.most = folder, key, most

    def filled(self, tree: Tree) -> Tree:
        """The tree with files in place of their names."""
        if not (names := names_in(tree)):
            return tree
        self.check(names)
        found = {name.sha256: self.get(name) for name in names}  # a file that is named twice is read once
        return filled(tree, lambda name: found[name.sha256])

    def put_all(self, files: Mapping[str, bytes], awaited: Collection[str]) -> int:
        """Store files by their hashes, if all of them are `awaited`."""
        if len(files) > _AT_ONCE:
            raise RefusedByPolicy(
                f"a letter brings {len(files)} files, and at most {_AT_ONCE} are taken", "limits"
            )
        if strange := [name for name in files if name not in awaited]:
            raise RefusedByPolicy(
                f"a letter brings the file {strange[0][:12]!r}, which was not asked for", "letter"
            )
        for name, content in files.items():
            self.check_file(name, content)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        there = self.listed()
        for name, content in files.items():
            self.store(name, content, there)
        return len(files)

    def put(self, name: str, content: bytes) -> None:
        self.put_all({name: content}, [name])

    def check(self, names: Sequence[FileName]) -> None:
        """Raise LacksFiles unless all of these are here. All that one letter names must fit into the store."""
        if (size := sum(on_disk(n.size) for n in names)) > self.most or len(names) > _MOST:
            raise RefusedByPolicy(
                f"a letter names {len(names):,} files that take {size:,} bytes on disk; expected at most {_MOST:,} "
                f"files, and this site's policy has stored_bytes = {self.most:,}",
                "limits",
            )
        here = {n for n in names if self.has(n)}
        for name in here:
            os.utime(self.path(name.sha256))  # what this letter needs is not forgotten for what it lacks
        if gone := [n for n in names if n not in here]:
            raise LacksFiles(gone)

    def has(self, name: FileName) -> bool:
        try:
            return self.path(name.sha256).stat().st_size == name.size + _MORE
        except FileNotFoundError:
            return False

    def get(self, name: FileName) -> Tensor:
        """The file as a row of bytes; one that cannot be read is forgotten, and lacking."""
        path = self.path(name.sha256)
        try:
            content = unsealed(self.key, path.read_bytes(), seal(name.sha256))
        except FileNotFoundError:
            content = None
        if content is None or len(content) != name.size:
            path.unlink(missing_ok=True)
            raise LacksFiles([name])
        os.utime(path)  # the newest is forgotten last
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)

    def check_file(self, name: str, content: bytes) -> None:
        """Refuse a file with another hash than its name, or that is too large or too small for the store."""
        if sha256(content).hexdigest() != name:
            raise RefusedByPolicy(f"a file that came as {name[:12]!r} has another sha256", "letter")
        if (size := on_disk(len(content))) > self.most:
            text = f"a file takes {size:,} bytes on disk, and this site's policy has stored_bytes = {self.most:,}"
            raise RefusedByPolicy(text, "limits")
        if len(content) < LEAST:
            raise RefusedByPolicy(
                f"a file has {len(content)} bytes, and none below {LEAST} is stored", "letter"
            )

    def store(self, name: str, content: bytes, there: dict[Path, int]) -> None:
        path = self.path(name)
        if self.has(FileName(name, len(content))):
            os.utime(path)
            there[path] = there.pop(path, on_disk(len(content)))
            return
        self.free_space(on_disk(len(content)), there)
        write_atomically(path, sealed(self.key, content, seal(name)), private=True)
        there[path] = on_disk(len(content))

    def listed(self) -> dict[Path, int]:
        """Bytes on disk of each file, those first that no letter has named for longest. What a process left half
        written is deleted."""
        found = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith(".part"):
                Path(entry).unlink(missing_ok=True)
            elif entry.name.endswith(".file"):
                there = entry.stat()
                found.append((there.st_mtime_ns, Path(entry), on_disk(there.st_size - _MORE)))
        return {path: size for _, path, size in sorted(found)}

    def free_space(self, size: int, there: dict[Path, int]) -> None:
        """Forget files until one of this size fits: those first that no letter has named for longest."""
        left = self.most - size - sum(there.values())
        while there and (left < 0 or len(there) >= _MOST):
            path = next(iter(there))
            left += there.pop(path)
            path.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.file"


def seal(name: str) -> bytes:
    return f"file {name}".encode()


def on_disk(size: int) -> int:
    """Bytes that a file of this size takes once it is encrypted.

    >>> on_disk(1000), on_disk(4090)
    (4096, 8192)
    """
    return -(-(size + _MORE) // _BLOCK) * _BLOCK
