"""Writing files so that a crash leaves the old content or the new, never half of it, and never through a link.

Knows the file system only.
"""

from __future__ import annotations

import os
from pathlib import Path

from motet.errors import RunError


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Write to a draft beside the file, then put it in the file's place. A `private` file is readable by its
    owner alone, and is on the disk, not only in the system's memory, when this returns."""
    draft = path.with_name(path.name + ".part")
    data = content.encode() if isinstance(content, str) else content
    if draft.is_symlink():
        draft.unlink()  # in a folder of somebody else's: what it names is not written
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(draft, flags, 0o600 if private else 0o666), "wb") as file:
        file.write(data)
        if private:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)
    if private:
        _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """So that the file's new name survives a power failure too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def refuse_links(folder: Path) -> None:
    """A folder may be somebody else's: what links in it lead to is not overwritten."""
    if link := next(
        (p for p in (folder, *folder.glob("*"), *folder.glob("models/*")) if p.is_symlink()), None
    ):
        raise RunError(
            f"{link} is a link, and what it leads to would be overwritten\n"
            "hint: delete the link, or choose a folder without one"
        )
