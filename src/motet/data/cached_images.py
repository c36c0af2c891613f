"""From images in the cache to a pool of rows; nothing is copied.

Knows pools of images. Does not know where they come from.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from motet.data.federated import Pixels, Pool
from motet.data.files.array_cache import Arrays


def pool(
    found: Arrays, classes: tuple[str, ...], pixels: Pixels, *, target: str = "y", augment: bool = False
) -> Pool:
    """Images `x` (N, height, width, channels) and the classes `target`; parts and owners if the arrays have them."""
    digest = hashlib.sha256(f"{found.digest} {target}".encode()).hexdigest()
    x = found["x"].transpose(0, 3, 1, 2)  # a view: in memory channels stay last
    owner, part = (np.asarray(found[k]) if k in found else None for k in ("owner", "part"))
    names = tuple(map(str, found["names"])) if "names" in found else ()
    rows = Pool(x, found[target].astype(np.int64), "classes", classes, (), owner, names, part)
    return replace(rows, scaling="none", pixels=pixels, augment=augment, digest=digest)
