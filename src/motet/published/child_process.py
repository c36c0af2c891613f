"""The child process that runs untrusted models, as its parent sees it: start, request, end.

Works on Linux, whose limits it uses. Knows a process and a pipe. Does not know models.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from motet.errors import need
from motet.published.limits import Limits
from motet.published.pipe import Ended, Late, Pipe
from motet.trusted_code import own_command

_START = 120.0  # seconds that a child may take to load its libraries


class Child:
    """A running child.py."""

    def __init__(self, limits: Limits) -> None:
        if sys.platform != "linux":
            raise RuntimeError(
                f"models of others run on Linux only, because they need its limits on processes; this is {sys.platform}"
                "\nhint: use a Linux machine or container"
            )
        need("a model of others", "stacking", "onnx", "onnxruntime")
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            own_command("motet.published.child"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # Ctrl-C must not reach it
        )
        assert self.process.stdin and self.process.stdout
        self.pipe = Pipe(self.process.stdout.fileno(), self.process.stdin.fileno())
        atexit.register(self.end)
        try:
            self.request(asdict(limits), b"", 0, _START)
        except (Ended, Late) as e:
            raise RuntimeError(
                f"the process for the models of others did not start (code {self.end()})"
                "\nhint: pip install 'motet[stacking]'"
            ) from e

    def request(
        self, header: dict[str, Any], body: Any, most: int, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        self.pipe.send(header, body, seconds)
        return self.pipe.receive(most, seconds)

    def ours(self) -> bool:
        """Whether it runs, and was not started by the process that this one was forked from."""
        return self.owner == os.getpid() and self.process.poll() is None

    def end(self) -> int:
        """End the process if it has not ended; returns its exit code."""
        atexit.unregister(self.end)
        if self.owner != os.getpid():
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)  # its own exit code tells more than that of kill()
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with contextlib.suppress(OSError):
                stream.close()
        return self.process.wait()


def _environment() -> dict[str, str]:
    """The variables that a child needs to find its libraries, and no others."""
    ours = str(Path(__file__).parents[2])
    paths = [ours, *(p for p in sys.path if p)]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
        "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime would report the models it runs to its maker
    }
