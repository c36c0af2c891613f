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


@contextmanager
def single_threaded() -> Iterator[None]:
    """For a thread that is lent to us: as `settle`, and afterwards as before."""
    before = torch.get_num_threads()
    single_thread()
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
