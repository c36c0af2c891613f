"""Features that are changed client by client: images turned, all values stretched, moved and made noisy.

What a client's features go through is drawn once, from the seed and the client's name, for all of its rows.
Knows arrays of rows and whose they are. Does not know targets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from motet.data.federated import DataError, Pool
from motet.data.splits.assignment import Assignment, generator

NAME = "feature_shift"
_AT_ONCE = 2048  # images


def shifted(pool: Pool, assignment: Assignment, split: str, how: Mapping[str, Any], seed: int) -> Pool:
    """The pool with changed features, if the split asks for them; the server's rows stay as they are."""
    if split != NAME:
        return pool
    images = pool.x.ndim == 4
    if (pool.x.dtype == np.uint8 and not images) or pool.codes or pool.columns and pool.fill:
        raise DataError(
            "split 'feature_shift' changes images and numbers; these are texts, or have missing cells.\n"
            "hint: split=dirichlet, or data.missing=mean"
        )
    x = np.array(pool.x)  # a copy: the files stay as they are
    spread = 255.0 if x.dtype == np.uint8 else np.asarray(x.std(0) if x.ndim == 2 else x.std())
    for i, client in enumerate(assignment.clients):
        rows = assignment.row[assignment.who == i]
        x[rows] = changed(x[rows], spread, generator(NAME, seed, client), how, images)
    words = json.dumps([pool.digest, NAME, seed, sorted(how.items())])
    digest = hashlib.sha256(words.encode()).hexdigest() if pool.digest else ""
    return replace(pool, x=x, digest=digest)


def changed(
    x: np.ndarray, spread: Any, rng: np.random.Generator, how: Mapping[str, Any], images: bool
) -> np.ndarray:
    """One client's rows; `spread` is what noise and moves are shares of."""
    angle = float(rng.uniform(-how["rotation"], how["rotation"]))
    channels = (x.shape[1], 1, 1) if images else x.shape[1:]
    stretch = 1 + rng.uniform(-how["style"], how["style"], channels)
    move = rng.uniform(-how["style"], how["style"], channels) * spread / 2
    sigma = float(rng.uniform(0, how["noise"])) * spread
    z = turned(x, angle) if images and angle else x.astype(np.float64)
    z = z * stretch + move + sigma * rng.standard_normal(z.shape)
    found: np.ndarray = np.clip(np.rint(z), 0, 255) if x.dtype == np.uint8 else z
    return found.astype(x.dtype)


def turned(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images (n, channels, height, width) turned about their middle; black comes in."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    ratio = x.shape[2] / x.shape[3]
    turn = torch.tensor([[c, -s * ratio, 0.0], [s / ratio, c, 0.0]], dtype=torch.float64)
    found = []
    for first in range(0, len(x), _AT_ONCE):
        part = torch.from_numpy(x[first : first + _AT_ONCE].astype(np.float64))
        grid = torch.nn.functional.affine_grid(
            turn.expand(len(part), 2, 3), list(part.shape), align_corners=False
        )
        found.append(torch.nn.functional.grid_sample(part, grid, align_corners=False).numpy())
    return np.concatenate(found) if found else x.astype(np.float64)
