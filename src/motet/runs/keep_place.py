"""Where what clients keep is between rounds: in memory while it fits, else in the run's database.

The place changes no result, so it is chosen anew whenever a run starts or goes on.
Knows sizes of trees and the machine's memory. Does not know how trees are stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor

from motet.client import ClientData
from motet.client.population import MANY
from motet.client.visit import examples
from motet.core import Client, Method
from motet.vec import leaves

_VERSIONS = 2  # of each client: as it is, and as it was in the best round
_SHARE = 0.25  # of the machine's memory that they may take


def keeps_on_disk(asked: str, method: Method, clients_data: Mapping[Client, ClientData]) -> bool:
    """Whether states go to the disk at once: as the recipe says, and if it leaves that open, where all of them would
    take more than a quarter of the machine's memory, or clients are very many."""
    if asked != "auto" or not clients_data:
        return asked == "disk"
    need = _VERSIONS * len(clients_data) * kept_bytes(method, clients_data)
    return bool(need) and (len(clients_data) >= MANY or need > _SHARE * memory())


def kept_bytes(method: Method, clients_data: Mapping[Client, ClientData]) -> int:
    """Bytes that one client keeps as it joins; 0 for methods whose clients keep nothing then."""
    if type(method).join is Method.join:
        return 0
    first = next(iter(clients_data))
    kept = method.join(examples(clients_data[first], 0, first, 0))
    return sum(t.numel() * t.element_size() for t in leaves(kept) if isinstance(t, Tensor))


def memory() -> int:
    """Bytes of memory of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known here
        return 8 << 30
