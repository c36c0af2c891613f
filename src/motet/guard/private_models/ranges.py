"""Columns between public bounds as numbers from 0 to 1, the same in numpy and in ONNX.

Bounds come from public knowledge (a questionnaire, a unit), never from the rows: a private model must not
reveal its rows' extremes. Numbers whose bounds are far apart are taken in logarithms, which the bounds alone
decide. Knows columns. Does not know what is learned from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_FAR = 1000.0  # bounds that lie further apart are those of sums of money and the like


@dataclass(frozen=True)
class Ranges:
    """Bounds of each column, (features,) each."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, bounds: Sequence[tuple[float, float]] | np.ndarray | None, features: int) -> Ranges:
        """Bounds of `features` columns; (0, 1) for all where there are none, as flags have."""
        b = np.tile([0.0, 1.0], (features, 1)) if bounds is None else np.asarray(bounds, np.float64)
        if b.shape != (features, 2) or not (b[:, 0] < b[:, 1]).all():
            raise ValueError(
                f"bounds have the shape {b.shape} or are not ordered; {features} pairs (lowest, highest) are needed"
                "\nhint: take them from public knowledge, not from the rows"
            )
        return cls(b[:, 0].astype(np.float32), b[:, 1].astype(np.float32))

    @property
    def far(self) -> np.ndarray:
        return np.asarray(self.high - self.low > _FAR)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Rows with every column in 0 to 1; a missing value is in the middle."""
        v = np.clip(np.asarray(x, np.float32), self.low, self.high) - self.low
        wide = self.high - self.low
        z = np.where(self.far, np.log1p(v) / np.log1p(wide), v / wide)
        return np.asarray(np.nan_to_num(z, nan=0.5), np.float32)

    def operators(self, to: str) -> tuple[list[Any], list[tuple[str, Any]]]:
        """`scaled` as operators that read x, and their constants."""
        from onnx import helper

        wide = self.high - self.low
        steps = [
            helper.make_node("Max", ["x", "low"], ["above"]),
            helper.make_node("Min", ["above", "high"], ["within"]),
            helper.make_node("Sub", ["within", "low"], ["over"]),
            helper.make_node("Div", ["over", "wide"], ["share"]),
            helper.make_node("Add", ["over", "unit"], ["more"]),
            helper.make_node("Log", ["more"], ["log"]),
            helper.make_node("Mul", ["log", "far"], ["far_share"]),
            helper.make_node("Mul", ["share", "near"], ["near_share"]),
            helper.make_node("Add", ["near_share", "far_share"], ["scaled"]),
            helper.make_node("IsNaN", ["scaled"], ["missing"]),
            helper.make_node("Where", ["missing", "middle", "scaled"], [to]),
        ]
        constants = {
            "low": self.low,
            "high": self.high,
            "wide": wide,
            "unit": [1.0],
            "middle": [0.5],
            "far": np.where(self.far, 1 / np.log1p(wide), 0.0),
            "near": np.where(self.far, 0.0, 1.0),
        }
        return steps, list(constants.items())


def bounds_of(names: Sequence[str], known: Mapping[str, tuple[float, float]]) -> np.ndarray:
    """Bounds of columns by name; (0, 1) for those that are not known, as flags have."""
    return np.array([known.get(n, (0.0, 1.0)) for n in names], np.float64)
