"""Masks from seeds: ChaCha20's keystream, added to numbers where they are.

The stream is made in pieces that stay in a core's cache. Knows bytes and arrays. Does not know whose seeds they are.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from motet.guard.masks.fixed_point import Words

_PIECE = 1 << 18  # bytes
_ZEROS = bytes(_PIECE)


def add_mask(numbers: Words, key: bytes, *, negative: bool = False) -> None:
    """Add the mask of a key to numbers, or take it away, modulo 2^64 or 2^32. A key is for one sum only."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    many = _PIECE // numbers.itemsize
    piece = np.empty(many, numbers.dtype)
    view = memoryview(piece.data).cast("B")
    change = np.subtract if negative else np.add
    for first in range(0, len(numbers), many):
        part = numbers[first : first + many]
        stream.update_into(_ZEROS[: part.nbytes] if part.nbytes < _PIECE else _ZEROS, view)
        change(part, piece[: len(part)], out=part)
