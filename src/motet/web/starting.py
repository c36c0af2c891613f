"""What was started from the dashboard: the words of the command, and the file that its process prints to.

    runs/started/NAME.json   the words, to go on with the same command
    runs/started/NAME.log    what the process printed

Knows small files. Does not know what the words mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from motet.atomic import write_atomically
from motet.web import processes
from motet.web.run_reading import plain_file

FOLDER = "started"
_PRINTED = 4000  # characters of a log


class Started:
    """The commands that were given in a folder of runs."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder = base, base / FOLDER

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def words_of(self, name: str) -> list[str]:
        """The command that a run or study was started with; [] if it was not started here."""
        try:
            found = json.loads((self.folder / f"{name}.json").read_text())["words"]
        except (OSError, ValueError, LookupError, TypeError):
            return []
        return [str(w) for w in found] if isinstance(found, list) else []

    def start(self, name: str, words: Sequence[str]) -> int:
        """Start a command as a process that outlives this one, where the dashboard itself was started."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_of(name).write_bytes(b"")
        pid = processes.start(words, self.log_of(name), Path.cwd())
        content = {"words": list(words), "at": time.time(), "pid": pid}
        write_atomically(self.folder / f"{name}.json", json.dumps(content, indent=1) + "\n")
        return pid

    def names(self) -> set[str]:
        return {p.stem for p in self.folder.glob("*.json")}

    def begins(self, name: str) -> tuple[bool, str] | None:
        """Of what was started and wrote nothing yet: whether its process is there, and what that printed; None for
        what was not started here."""
        if name not in self.names():
            return None
        try:
            pid = int(json.loads((self.folder / f"{name}.json").read_text())["pid"])
            log = self.log_of(name)
            printed = log.read_text(errors="replace")[-_PRINTED:] if plain_file(log, self.folder) else ""
            return processes.is_command(pid), printed
        except (OSError, ValueError, LookupError, TypeError):
            return None
