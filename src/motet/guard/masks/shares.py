"""Shamir's secret sharing of 16-byte seeds, by PyCryptodome: the one file that imports it.

Knows bytes. Does not know whose seeds they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from motet.errors import need

SEED = 16  # bytes


def split(seed: bytes, threshold: int, many: int) -> list[bytes]:
    """Shares number 1 to `many`, of which `threshold` give the seed and fewer give nothing."""
    return [share for _, share in _shamir().split(threshold, many, seed)]


def combined(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The seed, of as many shares as are needed, by their numbers."""
    seed: bytes = _shamir().combine(list(shares.items())[:threshold])
    return seed


def _shamir() -> Any:
    need("a masked sum", "masks", "Crypto")
    from Crypto.Protocol.SecretSharing import Shamir

    return Shamir
