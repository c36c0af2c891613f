"""Worker processes, and the template that they are copies of.

Importing torch takes seconds. Where processes can be copied (Linux), one template process imports everything
once, computes nothing, and is copied for every worker. Elsewhere each worker is started from the beginning.
Knows processes and pipes. Imports nothing heavy, so that a command can start the template while it reads its recipe.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TextIO

from motet.engines.cores import CORES
from motet.errors import RunError
from motet.trusted_code import own_command

FORKS = sys.platform == "linux"  # elsewhere a copy of a process that has loaded libraries is not safe
LONGEST = 1 << 20  # bytes of the longest request: environment and import path
COMMAND = own_command("motet.runs.worker")


def surroundings() -> dict[str, object]:
    """Where this process looks for code and data, for a worker that starts now."""
    return {"path": [p or os.getcwd() for p in sys.path], "cwd": os.getcwd(), "env": dict(os.environ)}


class Template:
    """The process that is copied. It ends when this process ends, and so do all copies."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        command = [*COMMAND, "--template", str(theirs.fileno())]
        paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip
        theirs.close()
        atexit.register(self.process.kill)  # also where no study begins

    def copy(self, streams: list[int], environment: dict[str, str]) -> int:
        """A new worker with these as stdin, stdout and stderr; its number."""
        around = surroundings() | {"env": environment}
        socket.send_fds(self.line, [json.dumps(around).encode()], streams)
        if not (number := self.line.recv(100)):
            raise RunError("a worker process could not be started\nhint: --jobs 1 needs none")
        return int(number)

    def code_of(self, worker: int) -> int:
        """How a worker ended, as subprocess says it; 1 if nobody knows any more."""
        with suppress(OSError):
            self.line.send(str(worker).encode())
            return int(self.line.recv(100) or 1)
        return 1

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


_template: list[Template] = []  # none or one


def template() -> Template | None:
    """The template, started if it is not there; None where processes cannot be copied."""
    if not FORKS:
        return None
    if not _template or not _template[0].lives:
        _template[:] = [Template()]
    return _template[0]


def end_template() -> None:
    """It holds some hundred megabytes; the next study starts another."""
    for one in _template:
        one.line.close()
        one.process.kill()
        one.process.wait()
    _template.clear()


@dataclass
class WorkerProcess:
    """A worker process and the pipes to it: its orders, what it answers, and its stderr."""

    cores: int = 0  # that it may use; 0 = all
    orders: TextIO = field(init=False)
    answers: TextIO = field(init=False)
    errors: TextIO = field(init=False)

    def __post_init__(self) -> None:
        (stdin, orders), (answers, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
        self.orders = os.fdopen(orders, "w", encoding="utf-8")
        self.answers, self.errors = (
            os.fdopen(fd, encoding="utf-8", errors="replace") for fd in (answers, errors)
        )
        self.original = template()
        if self.original:
            self.number = self.original.copy([stdin, stdout, stderr], self.environment)
        else:
            paths = os.pathsep.join(p or os.getcwd() for p in sys.path)
            self.process = subprocess.Popen(
                COMMAND, stdin=stdin, stdout=stdout, stderr=stderr,
                start_new_session=True, env=self.environment | {"PYTHONPATH": paths},
            )  # fmt: skip
        for end in (stdin, stdout, stderr):
            os.close(end)

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with the worker's part of the cores."""
        return dict(os.environ) | ({CORES: str(self.cores)} if self.cores else {})

    def send(self, line: str) -> None:
        self.orders.write(line)
        self.orders.flush()

    def close(self) -> None:
        """It ends by itself when nobody can give it orders."""
        with suppress(BrokenPipeError):
            self.orders.close()

    def code(self) -> int:
        """How it ended: an exit code, or minus the signal that killed it; waits for the end."""
        return self.original.code_of(self.number) if self.original else self.process.wait()
