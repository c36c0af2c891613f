"""When memory that is free within the process goes back to the system.

Small networks make and free the same arrays of some MiB many times a second. By default the C library gives such
pieces back as soon as they are free, and the system clears them again for the next use: a tenth of a round's time.
Large networks are made and freed by several threads, and the C library keeps what they free in pieces that the next
network does not fit into. A run that stores the states of 150 ResNets one after another then held 1.2 GB that nothing
used.
Knows the C library of Linux. Does nothing elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

EVERY = 512 << 20  # bytes of states after which it is worth some milliseconds
_REUSED = 32 << 20  # bytes: larger pieces go back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them


@cache
def _function(name: str) -> Callable[..., int] | None:
    """A function of the C library's allocator, where it has one."""
    try:
        found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # no such library here
        return None
    return found


@cache
def reuse_small_pieces() -> None:
    """Let the process keep free pieces up to a size, and twice that size at the end of its memory."""
    if set_option := _function("mallopt"):
        set_option(_MMAP_THRESHOLD, _REUSED)
        set_option(_TRIM_THRESHOLD, 2 * _REUSED)


def give_back() -> None:
    """Give back what is free; changes nothing else."""
    if trim := _function("malloc_trim"):
        trim(0)
