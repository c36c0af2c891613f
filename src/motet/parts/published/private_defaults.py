"""Middle values of columns, differentially private by OpenDP. Knows columns; does not know models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from motet.parts.published.manifest import Kind


def private_middles(
    columns: Sequence[tuple[str, Kind, np.ndarray]],
    epsilon: float,
    bounds: Mapping[str, tuple[float, float]],
    seed: int,
) -> list[float]:
    raise NotImplementedError
