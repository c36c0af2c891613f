"""Which models to fetch within a budget of bytes.

Knows manifests and past importances. Does not know how models are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from motet.published import Manifest


def overlap(manifest: Manifest, names: Collection[str]) -> float:
    """Jaccard similarity of the columns that a model reads and the columns `names` that a client holds."""
    theirs, mine = set(manifest.names), set(names)
    return len(theirs & mine) / max(len(theirs | mine), 1)


def worth(manifest: Manifest, names: Collection[str], trust: Mapping[str, float] | None = None) -> float:
    """Expected use of a model: its overlap of columns times its past importance (the mean, if it has none)."""
    known = trust or {}
    usual = sum(known.values()) / len(known) if known else 1.0
    return overlap(manifest, names) * known.get(manifest.client, usual)


def order(
    manifests: Sequence[Manifest], names: Collection[str], trust: Mapping[str, float] | None = None
) -> list[Manifest]:
    """The most useful model first; of two that are equally useful, the smaller."""
    return sorted(manifests, key=lambda m: (-worth(m, names, trust), m.size, m.client))


def within(
    budget: int,
    manifests: Sequence[Manifest],
    names: Collection[str],
    trust: Mapping[str, float] | None = None,
) -> list[str]:
    """The clients whose models to fetch, so that all together are at most `budget` bytes; 0 is no limit.

    The most useful are taken first; a model that does not fit is skipped, and smaller ones after it may fit.
    """
    left, chosen = budget or sum(m.size for m in manifests), []
    for m in order(manifests, names, trust):
        if m.size <= left:
            left -= m.size
            chosen.append(m.client)
    return chosen
