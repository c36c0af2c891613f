"""A site begins anew in a run: what it kept there is set aside, and the server is told when it next asks for it.

Files are moved into a folder beside them, not deleted: a key that was lost may be found again. A mark stays in the
run's folder. The server then goes on with this site as with one that has just joined, and writes that down.
Knows a site's folders and states. Does not know letters.
"""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import unquote

from motet.deploy.flare.kits import FederationError, Kit
from motet.deploy.site.storage import LAYOUT, EncryptedState, EncryptedStateError, read_layout, site_key
from motet.text import unknown

MARK = "reset"  # in a run's folder: when its owner reset it, a line for each time


def reset(kit: Kit, run: str = "") -> list[str]:
    """Begin anew in one run, or in all whose files are damaged; what was done, in lines."""
    return reset_runs(kit.folder / "kept", site_key(kit.folder / "key"), run)


def reset_runs(kept: Path, key: bytes, run: str = "") -> list[str]:
    found = {unquote(p.name.removesuffix(".run")): p for p in sorted((kept / "runs").glob("*.run"))}
    if run and run not in found:
        raise FederationError(unknown("run", run, sorted(found)))
    wrong = {name: damaged(folder, name, key) for name, folder in found.items() if run in ("", name)}
    chosen = [name for name, files in wrong.items() if files or run]
    for name in chosen:
        set_aside(found[name], wrong[name])
    lines = [f"{name}: {said(wrong[name])}; this site begins anew in it" for name in chosen]
    return lines or ["nothing is damaged\nhint: --run NAME begins anew in that run all the same"]


def said(files: list[Path]) -> str:
    return f"{len(files)} damaged ({', '.join(f.name for f in files)})" if files else "not damaged"


def damaged(folder: Path, run: str, key: bytes) -> list[Path]:
    """The files of a run that cannot be read."""
    states, found = EncryptedState(folder, run, key), []
    for label in sorted(states.labels()):
        try:
            states.get(label)
        except EncryptedStateError:
            found.append(states.path(label))
    try:
        if (folder / LAYOUT).exists():
            read_layout(folder / LAYOUT)
    except EncryptedStateError:
        found.append(folder / LAYOUT)
    return found


def set_aside(folder: Path, wrong: list[Path]) -> None:
    """Move a run's states away, and its layout if it is damaged: a whole one goes on serving a job that is running.
    The mark comes first, so that a crash in between can be repeated."""
    now = time.strftime("%Y-%m-%dT%H.%M.%SZ", time.gmtime())
    with (folder / MARK).open("a") as mark:
        mark.write(f"{now}\n")
    aside = folder / f"before-{now}"
    aside.mkdir(mode=0o700, exist_ok=True)
    for file in {*folder.glob("*.keep"), *wrong}:
        file.rename(aside / file.name)


def was_reset(folder: Path) -> bool:
    return (folder / MARK).exists()
