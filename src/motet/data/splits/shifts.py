"""A split in which clients differ in their features and not in their targets.

Knows rows and clients. Does not know how features are changed (feature_shifts.py).
"""

from __future__ import annotations

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows
from motet.data.splits.basic import iid


def feature_shift(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients
    rotation: float = 45.0,  # images only: each client's are turned by an angle of up to so many degrees
    noise: float = 0.1,  # each client's values have noise of up to this share of their spread
    style: float = 0.5,  # each client's values are stretched and moved by up to this share
) -> Assignment:
    """Rows are divided evenly, and each client's features are turned, stretched and made noisy in its own way."""
    if wrong := [f"{k} is {v}" for k, v in (("noise", noise), ("style", style)) if not 0 <= v < 1]:
        raise DataError(f"split 'feature_shift': {', '.join(wrong)}; expected at least 0 and below 1")
    if not 0 <= rotation <= 180:
        raise DataError(f"split 'feature_shift': rotation is {rotation}; expected 0 to 180 degrees")
    return iid(all_rows, clients=clients)
