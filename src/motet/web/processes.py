"""Processes that train: who writes a run or a study at the moment, starting one, asking one to stop.

A run holds a lock on its folder while it is written, and the system says which process holds it. So nothing has to be
written down that could be wrong after a crash or a restart. A process that is started here has a session of its own:
it lives on when the dashboard ends.
Knows processes and locks. Does not know what they compute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from motet.trusted_code import own_command

LOCKS = Path("/proc/locks")  # Linux
_FRESH = 0.2  # seconds for which a reading of all locks is good
_children: list[subprocess.Popen[bytes]] = []
_read: tuple[float, dict[int, int]] = (-1.0, {})


def can_see_processes() -> bool:
    """Whether this system says who holds a lock."""
    return LOCKS.exists()


def holders() -> dict[int, int]:
    """Processes that hold a lock, by the number (inode) of the locked file."""
    global _read
    if time.monotonic() - _read[0] > _FRESH:
        _read = time.monotonic(), read_locks(LOCKS.read_text()) if LOCKS.exists() else {}
    return _read[1]


def read_locks(text: str) -> dict[int, int]:
    """
    >>> read_locks("4: FLOCK  ADVISORY  WRITE 6562 fe:00:2230568 0 EOF\\n5: POSIX  ADVISORY  READ 7 fe:00:9 0 EOF")
    {2230568: 6562}
    """
    words = (line.split() for line in text.splitlines())
    held = [w for w in words if len(w) >= 6 and w[1] == "FLOCK" and w[3] == "WRITE"]
    return {int(w[5].rpartition(":")[2]): int(w[4]) for w in held}


def writer_of(lock: Path) -> int | None:
    """The process that holds this lock."""
    try:
        number = lock.stat().st_ino
    except OSError:
        return None
    return holders().get(number)


def ask_to_stop(lock: Path) -> bool:
    """Ask the process that holds a lock to stop after its round, as Ctrl-C does; False if nobody holds it.

    A link to a file that another program holds, in a folder of somebody else's runs, stops nothing.
    """
    global _read
    _read = (-1.0, {})  # a process that ended may have left its number to another
    pid = writer_of(lock)
    if pid is None or lock.is_symlink() or lock.stat().st_nlink > 1:
        return False
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)  # stays this process's, whoever gets its number later
        try:
            wanted = lock.stat()  # whose number is its own within one disk only
            for opened in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    if os.path.samestat(opened.stat(), wanted):
                        signal.pidfd_send_signal(process, signal.SIGINT)
                        return True
        finally:
            os.close(process)
    return False


def start(words: Sequence[str], log: Path, folder: Path) -> int:
    """Start `motet …` in a session of its own, in `folder`; what it prints goes to a file. Returns its number."""
    reap()
    command = own_command("motet.cli.main", *words)
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, start_new_session=True
        )
    _children.append(process)
    return process.pid


def reap() -> None:
    """Let the system forget processes that have ended."""
    _children[:] = [p for p in _children if p.poll() is None]


def is_command(pid: int) -> bool:
    """Whether a process runs and is a command of motet's: numbers of processes are used again."""
    reap()
    try:
        return b"motet.cli.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return any(p.pid == pid for p in _children)
