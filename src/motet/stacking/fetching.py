"""Which models to fetch when there are more than one wants to pay for.

Knows manifests and past importances. Does not know how models travel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from motet.published import Manifest


def overlap(manifest: Manifest, names: Collection[str]) -> float:
    """Of the columns that a model reads or an asker holds, the share that both know."""
    theirs, mine = set(manifest.names), set(names)
    return len(theirs & mine) / max(len(theirs | mine), 1)


def worth(manifest: Manifest, names: Collection[str], trust: Mapping[str, float] | None = None) -> float:
    """What a model promises: its share of columns, times how important it has been (an unknown one: average)."""
    known = trust or {}
    usual = sum(known.values()) / len(known) if known else 1.0
    return overlap(manifest, names) * known.get(manifest.client, usual)


def order(
    manifests: Sequence[Manifest], names: Collection[str], trust: Mapping[str, float] | None = None
) -> list[Manifest]:
    """The most promising first; of two that promise the same, the smaller."""
    return sorted(manifests, key=lambda m: (-worth(m, names, trust), m.size, m.client))


def within(
    budget: int,
    manifests: Sequence[Manifest],
    names: Collection[str],
    trust: Mapping[str, float] | None = None,
) -> list[str]:
    """The clients whose models to fetch, so that all together are at most `budget` bytes; 0 is no limit.

    The most promising first; one that does not fit is passed over, and smaller ones behind it may fit.
    """
    left, chosen = budget or sum(m.size for m in manifests), []
    for m in order(manifests, names, trust):
        if m.size <= left:
            left -= m.size
            chosen.append(m.client)
    return chosen
