"""A worker process on some machine of a Ray cluster, and the actor there that starts it and passes lines on.

Knows processes and actors. Imports nothing heavy: the actor's process stands beside the worker, which loads torch, and
a command can start workers while it reads its study.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from motet.engines.cores import CORES, cores
from motet.engines.ray_cluster import Cluster, Handle, Lost, Ref, connect
from motet.runs.worker_process import COMMAND

_LOOK = (
    0.5  # seconds after which somebody who waits for lines is told what there is, or that there is nothing
)
_ROUND = '{"event": "round"'  # how a line begins that tells of a round
Around = dict[str, Any]


class ClusterProcess:
    """A worker process on some machine of a cluster, with the same parts as one of this machine."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.handle: Handle = cluster.start(JobActor, surroundings(), threads=4)
        self.ready: Ref = self.handle.where.remote()

    @property
    def answers(self) -> Iterator[str]:
        return self.lines("answers")

    @property
    def errors(self) -> Iterator[str]:
        return self.lines("errors")

    def lines(self, which: str) -> Iterator[str]:
        """Until the process ends, or its machine is lost."""
        try:
            while (found := self.cluster.get(self.handle.lines.remote(which))) is not None:
                yield from found
        except Lost:
            return

    def send(self, line: str) -> None:
        self.handle.send.remote(line)

    def result_of(self, question: Callable[..., Any], *given: Any) -> Any:
        """What a function returns on its machine."""
        return self.cluster.get(self.handle.result_of.remote(question, *given))

    def close(self) -> None:
        self.cluster.kill(self.handle)  # the process ends with it

    def code(self) -> int:
        return 0


def surroundings() -> Around:
    """Where a worker looks for code and data."""
    return {
        "cwd": os.getcwd(),
        "path": [p or os.getcwd() for p in sys.path],
        # a worker is counted as one CPU by the cluster, so it uses one
        "env": {k: v for k, v in os.environ.items() if k.startswith("MOTET_")} | {CORES: "1"},
    }


def joined(where: str) -> Cluster:
    """The cluster that `--jobs` names: "ray" or "ray:ADDRESS"."""
    return connect(where.partition(":")[2] or os.environ.get("RAY_ADDRESS", ""), cores())


# ---- on the machine of the worker ----


class JobActor:
    """On the machine of the worker: starts it, and passes lines on. When this process ends, so does the worker."""

    def __init__(self, around: Around) -> None:
        env = os.environ | around["env"] | {"PYTHONPATH": os.pathsep.join(around["path"])}
        self.process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=around["cwd"], env=env, start_new_session=True,
        )  # fmt: skip
        self.said: dict[str, SimpleQueue[str | None]] = {"answers": SimpleQueue(), "errors": SimpleQueue()}
        for which, stream in (("answers", self.process.stdout), ("errors", self.process.stderr)):
            threading.Thread(target=pass_on, args=(stream, self.said[which]), daemon=True).start()

    def where(self) -> int:
        return os.getpid()

    def result_of(self, question: Callable[..., Any], *given: Any) -> Any:
        """What a function returns here."""
        return question(*given)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def lines(self, which: str) -> list[str] | None:
        """Lines that came since the last call; None if there will be no more. Lines about rounds wait a while for
        others, because each answer costs this machine and the other one a millisecond."""
        found: list[str | None] = []
        until = time.monotonic() + _LOOK
        with suppress(Empty):
            while None not in found:
                left = until - time.monotonic() if all(map(can_wait, found)) else 0.0
                found.append(self.said[which].get(left > 0, left))
        if found == [None]:
            return None
        if found and found[-1] is None:
            self.said[which].put(None)
        return [line for line in found if line is not None]


def can_wait(line: str | None) -> bool:
    return line is not None and line.startswith(_ROUND)


def pass_on(stream: Any, to: SimpleQueue[str | None]) -> None:
    for line in stream:
        to.put(line)
    to.put(None)
