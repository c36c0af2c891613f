"""What was started from the dashboard: which process it was, and the file that it prints to.

    runs/started/NAME.json   the process
    runs/started/NAME.log    what it printed
    runs/started/NAME.toml   the study, where one went on

A folder of runs may be somebody else's. So nothing here says what is run, nothing is written through a link, and
nobody waits for a pipe.
Knows small files. Does not know what words mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from motet.atomic import write_atomically
from motet.errors import UsageError
from motet.web import processes
from motet.web.run_reading import plain_file

FOLDER = "started"
_PRINTED = 4000  # bytes of a file that are read


class Started:
    """The commands that were given in a folder of runs."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder = base, base / FOLDER

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str, words: Sequence[str]) -> int:
        """Start a command as a process that outlives this one, where the dashboard itself was started."""
        self.make_folder()
        log = self.log_of(name)
        log.unlink(missing_ok=True)
        log.open("xb").close()  # a new file, and not what a link names
        pid = processes.start(words, log, Path.cwd())
        content = {"at": time.time(), "pid": pid}
        write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
        return pid

    def make_folder(self) -> None:
        if self.folder.is_symlink():
            raise UsageError(
                f"{self.folder} is a link\nhint: remove it; what is started is written down there"
            )
        self.folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        return {p.stem for p in self.folder.glob("*.json") if plain_file(p, self.base)}

    def begins(self, name: str) -> tuple[bool, str] | None:
        """Of what was started and wrote nothing yet: whether its process is there, and what that printed; None for
        what was not started here."""
        if name not in self.names():
            return None
        try:
            pid = int(json.loads(last_of(self.folder / f"{name}.json"))["pid"])
            log = self.log_of(name)
            return processes.is_command(pid), last_of(log) if plain_file(log, self.base) else ""
        except (OSError, ValueError, LookupError, TypeError):
            return None


def last_of(file: Path, most: int = _PRINTED) -> str:
    """The end of a file."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - most))
        return opened.read(most).decode(errors="replace")
