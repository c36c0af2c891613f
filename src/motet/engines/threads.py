"""The threads engine: one client per worker thread, one intra-op thread each.

Best for convolutions, recurrent nets and ordinary Python. Replies are used in the order of the
clients' names, whoever is ready first, so the number of workers changes no bit.
Knows threads. Does not know what any verb does.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from motet.client import ClientData
from motet.client.devices import CPU
from motet.client.visit import single_thread
from motet.core import Ask, Client, Tree, Verb
from motet.engines.client_state import ClientStates
from motet.engines.cores import cores
from motet.engines.loop import Loop


class Threads(Loop):
    """A Loop whose clients work side by side."""

    name = "threads"

    def __init__(
        self,
        clients_data: Mapping[Client, ClientData],
        keeps: ClientStates | None = None,
        *,
        workers: int | None = None,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(clients_data, keeps, device=device)
        self.workers = workers or cores()
        self.pool = ThreadPoolExecutor(self.workers, initializer=single_thread)

    def each(
        self,
        verb: Verb,
        sent: Mapping[Client, Tree],
        data: Callable[[Client], Any],
        keep_as: Ask | None = None,
    ) -> Iterator[tuple[Client, Tree]]:
        """As in the loop; at most two clients per worker are under way, which bounds memory. Warning filters belong to
        the process: what libraries change in one thread may not be undone in another, so they are set back here."""
        filters = list(warnings.filters)
        ready: deque[tuple[Client, Future[tuple[Tree, Tree]]]] = deque()
        try:
            for c, message in sent.items():
                ready.append((c, self.pool.submit(self.work, verb, c, message, self.keep(c), data)))
                if len(ready) >= 2 * self.workers:
                    yield from self.finished(*ready.popleft(), keep_as)
            while ready:
                yield from self.finished(*ready.popleft(), keep_as)
        finally:
            for _, work in ready:
                work.cancel()
            if list(warnings.filters) != filters:
                warnings.filters[:] = filters  # type: ignore[index]

    def work(
        self, verb: Verb, client: Client, sent: Tree, keep: Tree, data: Callable[[Client], Any]
    ) -> tuple[Tree, Tree]:
        return self.perform(verb, client, sent, keep, data(client))  # rows are fetched by the worker

    def finished(
        self, client: Client, work: Future[tuple[Tree, Tree]], keep_as: Ask | None
    ) -> Iterator[tuple[Client, Tree]]:
        """The client's reply, or nothing if it cannot be used."""
        reply, keep = work.result()
        if keep_as is None or self.accepted(keep_as, client, reply, keep):
            yield client, reply
