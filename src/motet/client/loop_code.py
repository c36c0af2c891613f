"""Nested loops in C++: axes of arrays, merged where arrays have no gaps.

Knows extents and steps. Does not know what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """One loop: how often, and by how much each array moves."""

    extent: int
    steps: tuple[int, ...]
    real: int  # without padding


def axes_of(
    shape: Sequence[int], extents: Sequence[int], order: Sequence[int], arrays: Sequence[Tensor]
) -> list[Axis]:
    return [Axis(extents[d], tuple(a.stride(d) for a in arrays), shape[d]) for d in order if extents[d] != 1]


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same loops, neighbours as one where every array goes on without a gap."""
    found: list[Axis] = []
    for axis in axes:
        last = found[-1] if found else None
        if last and all(a == b * axis.extent for a, b in zip(last.steps, axis.steps, strict=True)):
            found[-1] = Axis(last.extent * axis.extent, axis.steps, last.extent * axis.extent)
        else:
            found.append(axis)
    return found


def loop(depth: int, extent: int) -> str:
    return f"for (int i{depth} = 0; i{depth} < {extent}; i{depth}++) {{"


def nested(
    axes: Sequence[Axis], inside: Sequence[str], start: int = 0, pragma: str = "omp simd"
) -> Iterator[str]:
    for d, axis in enumerate(axes, start):
        if pragma and d == start + len(axes) - 1:
            yield f"#pragma {pragma}"
        yield loop(d, axis.extent)
    yield from inside
    yield from "}" * len(axes)
