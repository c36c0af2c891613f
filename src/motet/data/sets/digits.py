"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8, the test part of UCI's optdigits."""

from __future__ import annotations

import numpy as np

from motet.data.federated import Pool


def load() -> Pool:
    """Images of shape (1, 8, 8) with values from 0 to 1."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = (raw.images[:, None] / 16).astype(np.float32)
    return Pool(x, raw.target.astype(np.int64), "classes", tuple(map(str, raw.target_names)), scaling="none")
