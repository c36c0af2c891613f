"""Folders of the cache that are this user's alone. Compiled code from them is run, so nobody else may be able to put
anything there; decoded data in them are people's, so nobody else may read them.

Knows files, owners and rights. Does not know what is in them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_SEAL = 32  # bytes behind a library: the hash of its name and of what stands before them


def code_cache(name: str) -> Path | None:
    """A folder of motet's cache that this user alone can write to; None where there is no such folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = (caches / "motet" / name).absolute()
    try:
        place = private_folder(place).resolve()
        safe = all(is_safe(folder) for folder in (place, *place.parents))
    except OSError:
        return None
    return place if safe and os.access(place, os.W_OK | os.X_OK) else None


def private_folder(place: Path) -> Path:
    """The folder, closed to others where it is this user's; folders above it that are not there are made so too."""
    for folder in (*reversed(place.parents), place):
        folder.mkdir(exist_ok=True, mode=0o700)
    if (found := place.stat()).st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != 0o700:
        place.chmod(0o700)
    return place


def own_folder() -> Path:
    """A folder of this process alone, which ends with it."""
    folder = tempfile.mkdtemp(prefix="motet-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def is_safe(path: Path) -> bool:
    """Whether only this user and the administrator can write to it. In a folder with the sticky bit, such as /tmp,
    others can write, and cannot replace what is not theirs."""
    found = path.lstat()
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.getuid()) and not (shared and not sticky)


def seal(file: Path, name: str) -> None:
    """Put the hash behind a library; loaders read no further than its own end."""
    with file.open("ab") as end:
        end.write(_hash(name, file.read_bytes()))
    file.chmod(0o700)


def is_whole(file: Path) -> bool:
    """Whether it is this user's file, and as it was when it was sealed: a library that was cut off by a crash or a full
    disk would end the process that loads it."""
    with suppress(OSError):
        if is_safe(file) and stat.S_ISREG(file.lstat().st_mode):
            content = file.read_bytes()
            return content[-_SEAL:] == _hash(file.name, content[:-_SEAL])
    return False


def _hash(name: str, content: bytes) -> bytes:
    return sha256(name.encode() + b"\x1f" + content).digest()
