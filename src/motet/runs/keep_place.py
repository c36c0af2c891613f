"""Where what clients keep is between rounds: in memory while it fits, else in the run's database.

The place changes no result, so it is chosen anew whenever a run starts or goes on.
Knows sizes of trees and the machine's memory. Does not know how trees are stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from motet.client import ClientData
from motet.client.population import MANY
from motet.client.visit import examples, join
from motet.core import Client, Method
from motet.data.files.local_files import memory
from motet.runs.store_file import PAGE
from motet.vec import leaves

_VERSIONS = 2  # of each client: as it is, and as it was in the best round
_SHARE = 0.25  # of the machine's memory that they may take
_LARGE = 1 << 20  # bytes of a state from which the database has
_LARGE_PAGE = 1 << 16  # pages of so many bytes


def keeps_on_disk(
    asked: str, method: Method, clients_data: Mapping[Client, ClientData], compressed: bool = False
) -> bool:
    """Whether states go to the disk at once: as the recipe says, and if it leaves that open, where all of them would
    take more than a quarter of the machine's memory, or clients are very many. Of `compressed` updates clients keep
    what did not leave."""
    if asked != "auto" or not clients_data:
        return asked == "disk"
    need = _VERSIONS * len(clients_data) * kept_bytes(method, clients_data, compressed)
    return bool(need) and (len(clients_data) >= MANY or need > _SHARE * memory())


def page_size(
    asked: str, method: Method, clients_data: Mapping[Client, ClientData], compressed: bool = False
) -> int:
    """Bytes of a page of a new run's database. Large states on disk make pages large, because SQLite lists in memory
    which pages a round has written: with small ones 0.08 MiB for each ResNet-18."""
    on_disk = keeps_on_disk(asked, method, clients_data, compressed)
    return _LARGE_PAGE if on_disk and kept_bytes(method, clients_data, compressed) >= _LARGE else PAGE


def kept_bytes(method: Method, clients_data: Mapping[Client, ClientData], compressed: bool = False) -> int:
    """Bytes that one client keeps: what it joins with, which is nothing with some methods, and what compression left
    out of an update, about as much as the weights."""
    left_out = sum(4 * w.numel() for w in method.task.w0.values()) if compressed else 0
    if type(method).join is Method.join:
        return left_out
    first = next(iter(clients_data))
    kept = join(method, examples(clients_data[first], 0, first, 0), -1, first)
    return left_out + sum(t.numel() * t.element_size() for t in leaves(kept) if isinstance(t, Tensor))
