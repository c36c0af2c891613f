"""A worker process: performs one job after another, which it reads from stdin, and tells what happens on stdout.

Messages are lines of JSON. What code of the user's own prints goes to stderr. When stdin ends, whoever started
this process is gone, and it ends at once: locks are freed, and checkpoints are whole.
Knows jobs. Does not know who gives them out.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from motet.runs.worker_process import LONGEST
from motet.trusted_code import trust_names

Message = dict[str, Any]


class Worker:
    """Reads orders, and performs them until there are no more."""

    def __init__(self, orders: TextIO, out: TextIO) -> None:
        self.orders, self.out = orders, out
        self.waiting: SimpleQueue[Message] = SimpleQueue()
        self.stop = threading.Event()

    def take_orders(self) -> None:
        """Take orders while a job is performed."""
        for line in self.orders:
            order = json.loads(line)
            if order == {"stop": True}:
                self.stop.set()
            else:
                self.waiting.put(order)
        os._exit(0)  # not sys.exit: the other thread may be in the middle of a round

    def report(self, message: Message) -> None:
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()

    def work(self) -> None:
        threading.Thread(target=self.take_orders, daemon=True).start()
        prepare()
        import torch

        torch.set_num_threads(1)  # one core for each worker
        while True:
            self.perform(self.waiting.get())

    def perform(self, order: Message) -> None:
        from motet.runs.jobs import Job, perform_one
        from motet.runs.recipe import Recipe

        trust_names(order["trusted"])
        folder = Path(order["folder"]) if order["folder"] else None
        job = Job(order["name"], Recipe(order["settings"]), folder, upto=order["upto"])
        ended = perform_one(job, order["base"], self.report, self.stop.is_set, order["fresh"])
        where = str(ended.folder) if ended.folder else ""
        self.report(
            {
                "event": "end",
                "folder": where,
                "failure": ended.failure,
                "read": ended.read,
                "stopped": ended.stopped,
                "damaged": ended.damaged,
            }
        )


def prepare() -> None:
    """Load what every run needs: torch and all that recording a step, reading data and writing scores bring in."""
    import pandas  # noqa: F401
    import sklearn.base  # noqa: F401
    import torch._inductor  # noqa: F401

    import motet.runs.jobs  # noqa: F401


def serve(line: socket.socket) -> None:
    """The template: copy this process on request, and say how copies ended. It has one thread and computes nothing."""
    prepare()
    while True:
        request, streams, _, _ = socket.recv_fds(line, LONGEST, 3)
        if not request:
            return  # whoever started it is gone
        if streams:
            line.send(str(copied(line, request, streams)).encode())
        else:
            _, status = os.waitpid(int(request), 0)
            line.send(str(os.waitstatus_to_exitcode(status)).encode())


def copied(line: socket.socket, request: bytes, streams: list[int]) -> int:
    """The number of a new worker; in the worker itself it never returns."""
    number = os.fork()
    if number == 0:
        line.close()
        os.setsid()
        for fd, stream in enumerate(streams):
            os.dup2(stream, fd)
            os.close(stream)
        around = json.loads(request)
        os.chdir(around["cwd"])
        os.environ.clear()
        os.environ.update(around["env"])
        sys.path[:] = around["path"]
        main()
    for stream in streams:
        os.close(stream)
    return number


def main() -> None:
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what code of the user's own prints
    Worker(orders, out).work()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--template"]:
        serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        main()
