"""Differentially private medians and modes of columns, by OpenDP.

Each is a private median (Smith 2011): chosen among candidates by how evenly they divide the column, with noise.
A row is in every column, so each of d columns gets epsilon / d, and one row more or less changes the
probability of all published values together by a factor of at most e^epsilon. Candidates come from public bounds;
taking bounds from the data would not be private. Noise comes from the machine's secure source, because anyone who
knows a seed could remove it. A simulation, which is to be repeated, gives a seed: its medians are drawn from the same
kind of distribution, and protect nobody.

Knows columns; does not know models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from motet.errors import need
from motet.published.manifest import Kind

_CANDIDATES = 101  # values within the bounds that a number's default may take
Column = tuple[str, Kind, np.ndarray]


def private_middles(
    columns: Sequence[Column],
    epsilon: float,
    bounds: Mapping[str, tuple[float, float]],
    seed: int | None = None,
) -> list[float]:
    """A private median of each number within its bounds, and a private most frequent value of each flag."""
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}; differential privacy needs one above 0")
    unknown = [name for name, kind, _ in columns if kind == "number" and name not in bounds]
    if unknown:
        raise ValueError(
            f"no bounds are given for {', '.join(unknown[:5])}"
            "\nhint: pass bounds={name: (lowest, highest)} from public knowledge, not from these rows"
        )
    each = epsilon / len(columns)
    release = _medians(each) if seed is None else _simulated(each, np.random.default_rng(seed))
    return [release(c, _candidates(kind, bounds.get(name))) for name, kind, c in columns]


def _candidates(kind: Kind, bounds: tuple[float, float] | None) -> list[float]:
    if kind == "flag" or bounds is None:
        return [0.0, 1.0]
    low, high = bounds
    if not low < high:
        raise ValueError(f"bounds ({low}, {high}) are not a lower and a higher number")
    return [float(v) for v in np.linspace(low, high, _CANDIDATES)]


def _simulated(epsilon: float, rng: np.random.Generator) -> Callable[[np.ndarray, list[float]], float]:
    """As `_medians`, from a seed: the exponential mechanism (McSherry and Talwar 2007), where one row changes how
    evenly a candidate divides the others by a half."""

    def release(column: np.ndarray, candidates: list[float]) -> float:
        known = np.clip(column[~np.isnan(column)], candidates[0], candidates[-1])
        uneven = [abs(int((known < c).sum()) - int((known > c).sum())) / 2 for c in candidates]
        return candidates[int(np.argmax(rng.gumbel(size=len(candidates)) - epsilon * np.array(uneven)))]

    return release


def _medians(epsilon: float) -> Callable[[np.ndarray, list[float]], float]:
    """(column, candidates) -> a median that is private with `epsilon`."""
    need("a private median", "privacy", "opendp")
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def measure(candidates: list[float], scale: float) -> Any:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates, 0.5, scale)

    # The scale of the noise does not depend on the candidates; OpenDP checks it again for each column.
    scale = dp.binary_search_param(lambda s: measure([0.0, 1.0], s), d_in=1, d_out=epsilon, T=float)

    def release(column: np.ndarray, candidates: list[float]) -> float:
        known = np.clip(column[~np.isnan(column)], candidates[0], candidates[-1])
        private = measure(candidates, scale)
        assert private.check(1, epsilon)
        return float(private(known.tolist()))

    return release
