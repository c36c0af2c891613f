"""The mean squared error in the target's own unit, which the literature on School reports.

Knows targets and predictions of one client.
"""

from __future__ import annotations

import numpy as np


def mean_squared_error(targets: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.mean((targets - predictions) ** 2))


mean_squared_error.smaller_is_better = True  # type: ignore[attr-defined]
