"""Units in which rows are encrypted and scores come back, so that neither outgrows what CKKS holds.

A ciphertext holds numbers to about 1e-7, and scores below 2**19. So rows are standardised by a middle and a spread of
each column, weights fit standardised rows, and scores come in a unit of their own. All units stand in the manifest.

What they reveal: the middles are the features' defaults, which the manifest has anyway. A spread is a power of two
above the standard deviation of a column, as `feature_defaults` saw it: one far outlier shows in it. The target's
spread is a power of two that follows from the sum of the weights' sizes, and its middle is the answer for the defaults
to a precision that no row within reach can notice. None of them is differentially private.
Knows weights and columns. Does not know ciphertexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from motet.errors import UsageError
from motet.published.manifest import Feature, Manifest, Scaling

Array = np.ndarray[Any, Any]
REACH = 128.0  # spreads that a row may be away from the middles
_HELD = 2.0**17  # the largest score, in its unit; CKKS with our parameters holds four times as much
_LARGEST = 1e30  # of a middle, a spread or a score: manifests hold numbers of 32 bits


def middles_of(features: Sequence[Feature]) -> Array:
    return np.nan_to_num(np.array([f.default for f in features], np.float64))


def spreads_of(features: Sequence[Feature]) -> Array:
    """Of each column a power of two: as `feature_defaults` saw it, else from its default; flags have 1."""
    return np.array([1.0 if f.kind == "flag" else f.spread or _guess(f.default) for f in features])


def _guess(default: float) -> float:
    return power_above(max(1.0, float(np.nan_to_num(abs(default)))))


def power_above(number: float) -> float:
    """The smallest power of two that is not below a number.

    >>> power_above(5.0), power_above(0.25)
    (8.0, 0.25)
    """
    return float(2.0 ** np.ceil(np.log2(number)))


def scaling_of(features: Sequence[Feature], weights: Array, bias: Array, classes: bool) -> Scaling:
    """The units for a model with these weights (outputs, columns); refuses one whose scores cannot be held."""
    middle, spread = middles_of(features), spreads_of(features)
    reach = float(np.abs(weights * spread).sum(1).max()) * REACH
    base = bias + weights @ middle  # scores of the defaults
    largest = np.abs([*middle, *spread, *base, reach])
    if not np.all(largest < _LARGEST):
        raise UsageError(
            f"this model's columns or answers reach {np.max(np.nan_to_num(largest, nan=np.inf)):.2g}; expected less "
            f"than {_LARGEST:.0e}, which can be encrypted\nhint: measure columns and target in larger units"
        )
    least = float(np.abs(base).max()) if classes else 0.0
    unit = power_above(max(reach, least) or 1.0)
    offset = 0.0 if classes else float(2 * unit * np.round(base[0] / (2 * unit)))
    return Scaling(tuple(middle.tolist()), tuple(spread.tolist()), (offset, 2 * unit / _HELD))


def units_of(manifest: Manifest) -> Scaling:
    """The manifest's scaling; one without is refused."""
    if manifest.scaling is None:
        raise UsageError(
            f"the manifest of {manifest.client} does not say in which units rows are encrypted\n"
            "hint: its owner makes it anew: KeptModel.of(…).save(folder)"
        )
    return manifest.scaling


def in_units(scaling: Scaling, weights: Array, bias: Array) -> tuple[Array, Array]:
    """Weights and bias for standardised rows, which give scores in their unit."""
    middle, spread = np.array(scaling.middle), np.array(scaling.spread)
    offset, unit = scaling.target
    return weights * spread / unit, (bias + weights @ middle - offset) / unit


def standardised(manifest: Manifest, rows: Array) -> Array:
    """Rows as they are encrypted; one that is not finite or out of reach is refused."""
    units = units_of(manifest)
    if not len(rows) or rows.shape[1] != len(units.middle):
        raise UsageError(
            f"the rows have the shape {rows.shape}; expected at least one row of {len(units.middle)} columns\n"
            f"hint: the model of {manifest.client} reads {', '.join(manifest.names[:5])}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = (rows - np.array(units.middle)) / np.array(units.spread)
    bad = ~(np.abs(found) <= REACH)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        low, high = (units.middle[column] + k * REACH * units.spread[column] for k in (-1, 1))
        raise UsageError(
            f"row {row + 1} has {rows[row, column]:g} in column {manifest.names[column]!r}; expected a number between "
            f"{low:g} and {high:g}, which is as far as this model answers\n"
            "hint: leave the row out; an owner whose rows lie there makes the model anew with feature_defaults of them"
        )
    return found
