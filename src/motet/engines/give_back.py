"""Giving memory that is free within the process back to the system.

Networks are made and freed by several threads, and the C library keeps what they free in pieces that the next network
does not fit into. A run that stores the states of 150 ResNets one after another then held 1.2 GB that nothing used.
Knows the C library of Linux. Does nothing elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

EVERY = 512 << 20  # bytes of states after which it is worth some milliseconds


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no such library here
        return None
    return found


def give_back() -> None:
    """Give back what is free; changes nothing else."""
    if trim := _trim():
        trim(0)
