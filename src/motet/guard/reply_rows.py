"""Many replies as rows of numbers: in memory up to a limit, beyond it in a temporary file.

A robust mean needs all replies of an ask at once. It reads them a slice of coordinates at a time, so
that what is read fits into memory even where the replies together do not. The file has no name that
lasts: the system removes it when it is closed, also after a kill.
Knows rows, weights and files. Does not know trees, or what is made of the rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from typing import IO, Any, Protocol

import numpy as np
import torch
from torch import Tensor

MEMORY = 512 << 20  # bytes of rows that are held in memory
_SLICE = 4 << 20  # numbers that are read at once, of all rows together


class ReplyTable(Protocol):
    """Rows of one length to be read, each with a weight."""

    weights: Tensor  # (rows,)
    width: int

    def __len__(self) -> int: ...
    def slices(self) -> Iterator[Tensor]: ...
    def digest(self, row: int) -> bytes: ...


class ReplyRows:
    """Rows of one length, each with a weight, as they are added."""

    def __init__(self, memory: int = MEMORY) -> None:
        self.memory, self.used = memory, 0
        self.weights = torch.empty(0, dtype=torch.float64)
        self.blocks: list[Tensor] = []  # (rows, width) each; empty once there is a file
        self.file: IO[bytes] | None = None
        self.width, self.dtype = 0, torch.float32

    def __len__(self) -> int:
        return len(self.weights)

    def add(self, block: Tensor, weights: Tensor) -> None:
        """Some rows (rows, width), float32 or float64 as the first ones were; rows of weight 0 are left out."""
        live = weights > 0
        if not bool(live.all()):
            block, weights = block[live], weights[live]
        if not len(self):
            self.width, self.dtype = block.shape[1], block.dtype
        self.weights = torch.cat([self.weights, weights.double()])
        self.blocks.append(block.to(self.dtype))
        self.used += block.numel() * self.dtype.itemsize
        if self.used > self.memory:
            self._spill()

    def slices(self) -> Iterator[Tensor]:
        """(rows, some coordinates), from the first coordinates to the last."""
        step = max(1, _SLICE // max(1, len(self)))
        held = self._held()
        for first in range(0, self.width, step):
            yield torch.cat([b[:, first : first + step] for b in held])

    def digest(self, row: int) -> bytes:
        """A hash of a row's content."""
        for block in self._held():
            if row < len(block):
                return blake2b(_bytes(block[row])).digest()
            row -= len(block)
        raise IndexError(f"there is no row {row}; there are {len(self)}")

    def close(self) -> None:
        """Let go of the rows, and of the file."""
        self.blocks = []
        if self.file is not None:
            self.file.close()

    def _spill(self) -> None:
        if self.file is None:
            self.file = tempfile.TemporaryFile(prefix="motet-")  # noqa: SIM115, `close` closes it
        for block in self.blocks:
            self.file.write(_bytes(block))
        self.blocks = []

    def _held(self) -> list[Tensor]:
        if self.file is None:
            return self.blocks
        self.file.flush()
        kind = np.float64 if self.dtype == torch.float64 else np.float32
        # copy-on-write: torch wants memory that may be written, and nobody writes it
        on_disk = np.memmap(self.file, dtype=kind, mode="c", shape=(len(self), self.width))
        return [torch.from_numpy(on_disk)]


def _bytes(block: Tensor) -> memoryview:
    content: Any = block.contiguous().numpy()
    return memoryview(content).cast("B")
