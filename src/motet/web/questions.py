"""Questions to another process: it has torch and the command line's checks, which the dashboard does without.

The process (`motet.cli.answers`) is started before the first question and serves all that follow. If it dies or takes
too long it is ended, and the next question starts another.
Knows a process and JSON lines. Does not know what the answers mean.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from typing import Any

from motet.errors import UsageError
from motet.trusted_code import own_command


class Questions:
    """One process that answers, one question at a time."""

    def __init__(self, patience: float = 120.0) -> None:
        self.patience = patience  # seconds for an answer
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, what: str, **given: Any) -> Any:
        """The answer; what is wrong with the question is raised as an error for people."""
        with self.lock:
            found = self._ask({"ask": what, "with": given})
        if "error" in found:
            raise UsageError(str(found["error"]))
        return found["answer"]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._started()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = self.lines.get(timeout=self.patience)
        except (OSError, queue.Empty):
            line = ""
        if not line:
            self.end()
            raise UsageError(
                "the process that answers did not answer\nhint: try once more; see the terminal of motet ui"
            )
        found: dict[str, Any] = json.loads(line)
        return found

    def _started(self) -> subprocess.Popen[str]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        command = own_command("motet.cli.answers")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        return self.process

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")  # it ended

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
