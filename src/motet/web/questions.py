"""Questions to other processes: they have torch and the command line's checks, which the dashboard does without.

A process (`motet.cli.answers`) is started before the first question and serves all that follow. If it dies or takes
too long it is ended, and the next question starts another. A question that takes long keeps no other waiting: who has
waited a second gets a process of their own.
Knows processes and JSON lines. Does not know what the answers mean.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import Any

from motet.errors import UsageError
from motet.trusted_code import own_command

_TURN = 1.0  # seconds after which a question waits no longer for the one before it
_MOST = 4  # processes at a time; each holds some hundred megabytes


class Answering:
    """One process that answers, one question at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            own_command("motet.cli.answers"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")  # it ended

    def answer(self, question: dict[str, Any], patience: float) -> dict[str, Any]:
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=patience)
        except (OSError, queue.Empty):
            line = ""
        if not line:
            self.end()
            raise UsageError(
                "the process that answers did not answer\nhint: try once more; see the terminal of motet ui"
            )
        found: dict[str, Any] = json.loads(line)
        return found

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Questions:
    """Asks a process that is free."""

    def __init__(self, patience: float = 120.0) -> None:
        self.patience = patience  # seconds for an answer
        self.turn = threading.Condition()
        self.free: list[Answering] = []
        self.all: list[Answering] = []

    def ask(self, what: str, **given: Any) -> Any:
        """The answer; what is wrong with the question is raised as an error for people."""
        process = self.taken()
        try:
            found = process.answer({"ask": what, "with": given}, self.patience)
        finally:
            self.give_back(process)
        if "error" in found:
            raise UsageError(str(found["error"]))
        return found["answer"]

    def taken(self) -> Answering:
        """A process that nobody else asks until it is given back."""
        began = time.monotonic()
        with self.turn:
            while True:
                self.all = [p for p in self.all if p.lives]
                if free := [p for p in self.free if p.lives]:
                    self.free = free[1:]
                    return free[0]
                waited = time.monotonic() - began
                if not self.all or (waited >= _TURN and len(self.all) < _MOST):
                    self.all.append(process := Answering())
                    return process
                if waited >= self.patience:
                    raise UsageError("too many questions take long\nhint: try again in a minute")
                self.turn.wait(_TURN)

    def give_back(self, process: Answering) -> None:
        """One stays for the next question."""
        with self.turn:
            if process.lives and not self.free:
                self.free = [process]
            else:
                process.end()
            self.turn.notify()

    def end(self) -> None:
        with self.turn:
            for process in self.all:
                process.end()
            self.free, self.all = [], []
