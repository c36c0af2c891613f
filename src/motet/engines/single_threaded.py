"""How threads should compute: one intra-op thread, and no denormal numbers.

Two intra-op threads collapse beside any other process, and softmax tails that underflow slow a round
several times over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def single_thread() -> None:
    """For a thread that belongs to us."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def flushes_denormals() -> bool:
    """Whether this thread already takes denormal numbers for zero."""
    return bool(torch.full((), 1e-38) * 0.01 == 0)


@contextmanager
def single_threaded() -> Iterator[None]:
    """For a thread that is lent to us: as `single_thread`, and afterwards as before."""
    before, flushed = torch.get_num_threads(), flushes_denormals()
    single_thread()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)
