"""On which device an engine's clients compute, and what travels between it and the host.

The host holds everything that lasts: clients' rows, what clients keep, the server's state, metrics. A visit moves what
it needs to the device, and its reply and what is kept back. Rows that stay the same from round to round are left on
the device as long as there is room.
Knows devices and trees. Does not know how a device is chosen, nor what verbs do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from motet.client import Batch, ClientData
from motet.client.devices import CPU, moved, widest_float, working_on
from motet.core import Tree
from motet.engines.device_names import free_memory

_ROWS = 0.25  # share of the free memory of a device in which rows are remembered
_UNKNOWN = 256 << 20  # bytes for them where a device does not say how much is free


class Placement:
    """Moves trees to one device and back."""

    def __init__(self, device: torch.device, clients_data: Iterable[ClientData] = ()) -> None:
        self.device = torch.empty(0, device=device).device  # with its number
        self.sums = widest_float(self.device) == torch.float64  # whether replies can be summed there
        free = free_memory(self.device)
        self.free = _UNKNOWN if free is None else int(_ROWS * free)  # bytes for rows
        self.lasting = {id(t) for c in clients_data for t in tensors_of(c)}  # `clients_data` keep them alive
        self.rows: dict[int, Tensor] = {}
        self.letter: dict[int, tuple[Tensor, Tensor]] = {}  # the last one: many clients are sent the same
        self.thread = threading.local()
        if self.device.type == "cuda":
            repeatable()

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Inside, this thread computes on the device; all is done when it ends."""
        with working_on(self.device), self.stream():
            yield
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()

    def stream(self) -> AbstractContextManager[Any]:
        """A queue of work for each thread, so that clients of several threads can share a GPU."""
        if self.device.type != "cuda" or threading.current_thread() is threading.main_thread():
            return nullcontext()
        if not hasattr(self.thread, "stream"):
            self.thread.stream = torch.cuda.Stream(self.device)
        return torch.cuda.stream(self.thread.stream)

    def there(self, tree: Tree) -> Tree:
        """On the device; rows of clients are remembered there."""
        values, spec = pytree.tree_flatten(tree)
        return pytree.tree_unflatten([self._row(v) if isinstance(v, Tensor) else v for v in values], spec)

    def _row(self, v: Tensor) -> Tensor:
        if (known := self.rows.get(id(v))) is not None:
            return known
        made, size = v.to(self.device), v.numel() * v.element_size()
        if id(v) in self.lasting and size <= self.free:
            self.rows[id(v)], self.free = made, self.free - size
        return made

    def sent(self, tree: Tree) -> Tree:
        """On the device; what the last letter had too is not moved again."""
        values, spec = pytree.tree_flatten(tree)
        known = self.letter
        there = {id(v): known.get(id(v)) or (v, v.to(self.device)) for v in values if isinstance(v, Tensor)}
        self.letter = there  # one assignment: threads may do so at the same time
        return pytree.tree_unflatten([there[id(v)][1] if id(v) in there else v for v in values], spec)

    def back(self, tree: Tree) -> Tree:
        """On the host."""
        return moved(tree, CPU)


def tensors_of(client_data: ClientData) -> list[Tensor]:
    """A client's tensors that are the same in every round; rows that many clients share are copied each time."""
    parts = (client_data.train, client_data.val, client_data.test)
    return [t for p in parts if isinstance(p, Batch) for t in (p.x, p.y, p.live)]


def repeatable() -> None:
    """The same bits in every run on one GPU, and full single precision in convolutions as on the CPU."""
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
