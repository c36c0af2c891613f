"""The server's catalogue: published models as trees of plain tensors, by owner.

Knows trees and manifests. Does not know who fetches the models, or what they predict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from motet.published import Manifest, ModelRefused, Published
from motet.stacking import fetching
from motet.text import printable

Tree = Any
_VERSIONS = 100  # of one model
Catalogue = Mapping[str, Tree]  # {owner: {"manifest": bytes, "model": bytes}}, as tensors


def fetched(models: Catalogue) -> tuple[dict[str, Published], dict[str, str]]:
    """The models in the order of their owners' names, and the reasons why others were refused."""
    found, refused = {}, {}
    for owner in sorted(models):
        try:
            found[owner] = Published.from_tree(models[owner])
        except ModelRefused as e:
            refused[owner] = f"client {owner}: {printable(e.reason)}"
    return found, refused


def admitted(replies: Catalogue) -> tuple[dict[str, Tree], dict[str, str]]:
    """Of replies that are lists of versions of a model, those with valid manifests, and why others are refused."""
    good: dict[str, Tree] = {}
    refused: dict[str, str] = {}
    for owner, versions in replies.items():
        bad = {} if isinstance(versions, list | tuple) and versions else {owner: f"client {owner}: no model"}
        for v in versions if not bad else ():
            bad |= fetched({owner: v})[1]
        if bad:
            refused |= bad
        else:
            good[owner] = list(versions)
    return good, refused


# ---- what clients say of their stacks ----


class StackReply(Struct, forbid_unknown_fields=True):
    """How much a client's stack relies on each model, and why it uses others not at all."""

    trust: dict[str, Annotated[float, Meta(ge=0, le=1.000001)]]
    refused: dict[str, str]


def check_stack_reply(tree: Tree) -> None:
    """Raise ValueError for what is no reply to `stack`."""
    try:
        msgspec.convert(tree, StackReply)
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from e


def check_published(tree: Tree) -> None:
    """Raise ValueError for what is no reply to `publish`; what a model is made of is checked by `admitted`."""
    if not isinstance(tree, list | tuple) or not 1 <= len(tree) <= _VERSIONS:
        raise ValueError(f"a client publishes 1 to {_VERSIONS} versions of a model")


def reasons(replies: Catalogue, owners: Mapping[str, Any]) -> dict[str, str]:
    """Why clients use models of these owners not at all, as they say."""
    said = [(c, why) for r in replies.values() for c, why in r["refused"].items()]
    return {c: printable(why) for c, why in said if c in owners}


# ---- what a client is served ----


def manifest_of(tree: Tree) -> Manifest:
    return Manifest.from_json(tree["manifest"].numpy().tobytes())


def checksum(tree: Tree) -> int:
    """52 bits of the manifest's checksum, which covers the model's: a number that a double holds exactly."""
    return int(hashlib.sha256(tree["manifest"].numpy().tobytes()).hexdigest()[:13], 16)


def digest(models: Catalogue) -> int:
    """One number for a set of models: another one as soon as any model changes."""
    every = repr(sorted((owner, checksum(m)) for owner, m in models.items()))
    return int(hashlib.sha256(every.encode()).hexdigest()[:13], 16)


def affordable(
    models: Catalogue, mine: Tree | None, megabytes: float, trust: Mapping[str, float] | None
) -> Tree:
    """The models within a budget for a client whose own public model is `mine`; 0 is no limit."""
    if not megabytes:
        return dict(models)
    manifests = [replace(manifest_of(m), client=owner) for owner, m in models.items()]
    names = manifest_of(mine).names if mine else [n for m in manifests for n in m.names]
    chosen = fetching.within(int(megabytes * 1e6), manifests, names, trust)
    return {owner: models[owner] for owner in sorted(chosen)}
