"""Files on this machine: found by one of their names, regular and no larger than memory, and checked by checksum.

Knows names, gzip and checksums. Does not know what is in a file.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from motet.data.federated import DataError


def find(folder: Path, *names: str) -> Path:
    """The first of the names that exists, plain or gzipped."""
    there = [folder / n for name in names for n in (name, f"{name}.gz") if (folder / n).is_file()]
    if not there:
        raise DataError(
            f"{folder} has no {' or '.join(names)}.\nhint: it may be gzipped, with .gz behind its name"
        )
    return there[0]


def memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known here
        return 8 << 30


def regular(path: Path, share: int = 1) -> Path:
    """The path, if it is that of a file that can be read to its end: no pipe, no device, and none that is larger than
    this machine's memory divided by `share`."""
    try:
        facts = path.stat()
    except OSError as e:
        why = "it leads nowhere" if path.is_symlink() else e.strerror
        raise DataError(f"{path} cannot be read: {why}.\nhint: remove it, or put the file there") from e
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(
            f"{path} is no regular file: it is a pipe, a device or a folder, or a link to one.\n"
            "hint: remove it, or copy what it gives into a file"
        )
    if facts.st_size > memory() // share:
        raise DataError(
            f"{path} has {facts.st_size:,} bytes, more than this machine's memory can take of such a file "
            f"({memory() // share:,}).\nhint: take fewer rows, or a machine with more memory"
        )
    return path


@contextmanager
def reading(path: Path, what: str = "another file") -> Iterator[None]:
    """Any error while reading means that the file is damaged, or is `what`."""
    try:
        yield
    except DataError:
        raise
    except RecursionError:
        raise DataError(f"{path} is nested too deeply, or {what}.\nhint: get it again") from None
    except (EOFError, KeyError, OSError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as e:
        raise DataError(f"{path} is truncated or {what}: {e}.\nhint: get it again") from e


def content(path: Path, *, sha256: str = "", md5: str = "") -> bytes:
    """All of a file, unpacked if it is gzipped; the checksum is that of the unpacked bytes."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        with reading(path, "no gzip file"):
            raw = gzip.decompress(raw)
    compare(path, "sha256", hashlib.sha256(raw).hexdigest() if sha256 else "", sha256)
    compare(path, "md5", hashlib.md5(raw, usedforsecurity=False).hexdigest() if md5 else "", md5)
    return raw


def compare(path: Path, kind: str, got: str, expected: str) -> None:
    if got != expected:
        raise DataError(
            f"{path} is not the file it should be: its {kind} is {got}; expected {expected}.\nhint: get it again"
        )
