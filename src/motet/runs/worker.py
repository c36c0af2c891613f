"""A worker process: performs one job after another, which it reads from stdin, and tells what happens on stdout.

Messages are lines of JSON. What code of the user's own prints goes to stderr. When stdin ends, whoever started
this process is gone, and it ends at once: locks are freed, and checkpoints are whole.
Knows jobs. Does not know who gives them out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

Message = dict[str, Any]


class Worker:
    """Reads orders, and performs them until there are no more."""

    def __init__(self, orders: TextIO, out: TextIO) -> None:
        self.orders, self.out = orders, out
        self.waiting: SimpleQueue[Message] = SimpleQueue()
        self.stop = threading.Event()

    def listen(self) -> None:
        """Take orders while a job is performed."""
        for line in self.orders:
            order = json.loads(line)
            if order == {"stop": True}:
                self.stop.set()
            else:
                self.waiting.put(order)
        os._exit(0)  # not sys.exit: the other thread may be in the middle of a round

    def tell(self, message: Message) -> None:
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()

    def work(self) -> None:
        threading.Thread(target=self.listen, daemon=True).start()
        prepare()
        while True:
            self.perform(self.waiting.get())

    def perform(self, order: Message) -> None:
        from motet.runs.jobs import Job, perform_one
        from motet.runs.recipe import Recipe

        folder = Path(order["folder"]) if order["folder"] else None
        job = Job(order["name"], Recipe(order["settings"]), folder, upto=order["upto"])
        ended = perform_one(job, order["base"], self.tell, self.stop.is_set, order["fresh"])
        where = str(ended.folder) if ended.folder else ""
        self.tell(
            {
                "event": "end",
                "folder": where,
                "failure": ended.failure,
                "read": ended.read,
                "stopped": ended.stopped,
            }
        )


def prepare() -> None:
    """Load what every run needs while nobody waits for it; one core for each worker."""
    import torch

    import motet.runs.jobs  # noqa: F401

    torch.set_num_threads(1)


def main() -> None:
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    Worker(sys.stdin, out).work()


if __name__ == "__main__":
    main()
