"""Published models as a server keeps them: trees of plain tensors, by owner.

Knows trees and manifests. Does not know who asks, or what the models say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from motet.published import Manifest, ModelRefused, Published
from motet.stacking import fetching

Tree = Any
Catalogue = Mapping[str, Tree]  # {owner: {"manifest": bytes, "model": bytes}}, as tensors


def fetched(menu: Catalogue) -> tuple[list[Published], dict[str, str]]:
    """The models of a menu under their owners' names, and what is wrong with the others."""
    found, wrong = [], {}
    for owner, tree in menu.items():
        try:
            found.append(renamed(Published.from_tree(tree), owner))
        except ModelRefused as e:
            wrong[owner] = f"client {owner}: {e.reason}"
    return found, wrong


def admitted(told: Catalogue) -> tuple[dict[str, Tree], dict[str, str]]:
    """Of replies that are lists of versions of a model, those whose manifests fit, and why others do not."""
    good: dict[str, Tree] = {}
    wrong: dict[str, str] = {}
    for owner, versions in told.items():
        bad = {} if isinstance(versions, list | tuple) and versions else {owner: f"client {owner}: no model"}
        for v in versions if not bad else ():
            bad |= fetched({owner: v})[1]
        if bad:
            wrong |= bad
        else:
            good[owner] = list(versions)
    return good, wrong


def renamed(model: Published, owner: str) -> Published:
    return replace(model, manifest=replace(model.manifest, client=owner))


def manifest_of(tree: Tree) -> Manifest:
    return Manifest.from_json(tree["manifest"].numpy().tobytes())


def mark(tree: Tree) -> int:
    """52 bits of the manifest's checksum, which names the model's: a number that also a double holds."""
    return int(hashlib.sha256(tree["manifest"].numpy().tobytes()).hexdigest()[:13], 16)


def digest(menu: Catalogue) -> int:
    return int(
        hashlib.sha256(repr(sorted((c, mark(m)) for c, m in menu.items())).encode()).hexdigest()[:13], 16
    )


def affordable(
    menu: Catalogue, mine: Tree | None, megabytes: float, trust: Mapping[str, float] | None
) -> Tree:
    """The models within a budget for a client whose own public model is `mine`; 0 is no limit."""
    if not megabytes:
        return dict(menu)
    manifests = [replace(manifest_of(m), client=c) for c, m in menu.items()]
    names = manifest_of(mine).names if mine else [n for m in manifests for n in m.names]
    chosen = fetching.within(int(megabytes * 1e6), manifests, names, trust)
    return {c: menu[c] for c in sorted(chosen)}
