"""The server's catalogue: published models as trees of plain tensors, by owner.

Knows trees and manifests. Does not know who fetches the models, or what they predict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from motet.published import Manifest, ModelRefused, Published
from motet.published.public_choice import in_words, rounded_up
from motet.stacking import fetching
from motet.stacking.contribution import OWN
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
    """Of replies that are lists of versions of a model, those with valid manifests, and why others are refused. A list
    of none is of a client that publishes nothing."""
    good: dict[str, Tree] = {}
    refused: dict[str, str] = {}
    for owner, versions in replies.items():
        bad = {} if isinstance(versions, list | tuple) else {owner: f"client {owner}: no model"}
        for v in versions if not bad else ():
            bad |= fetched({owner: v})[1]
        if bad:
            refused |= bad
        else:
            good[owner] = list(versions)
    return good, refused


def of_present(state: Tree, clients: Collection[str]) -> Iterator[dict[str, Tree]]:
    """Models, trust and checksums of those who are still in the federation."""
    here = set(clients)
    return ({c: v for c, v in state[key].items() if c in here} for key in ("catalogue", "trust", "stacked"))


# ---- what clients say of their stacks ----


_Share = Annotated[float, Meta(ge=0, le=1.000001)]


class StackReply(Struct, forbid_unknown_fields=True):
    """How much a client's stack relies on each model, and why it uses others not at all."""

    trust: dict[str, _Share]
    refused: dict[str, str]
    skill: dict[str, _Share]  # how well each served model orders this client's validation rows
    alike: list[Annotated[list[str], Meta(min_length=2, max_length=2)]]  # served models that answer the same


def check_stack_reply(tree: Tree) -> None:
    """Raise ValueError for what is no reply to `stack`."""
    try:
        msgspec.convert(tree, StackReply)
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from e


def check_published(tree: Tree) -> None:
    """Raise ValueError for what is no reply to `publish`; what a model is made of is checked by `admitted`."""
    if not isinstance(tree, list | tuple) or len(tree) > _VERSIONS:
        raise ValueError(f"a client publishes at most {_VERSIONS} versions of a model")


def reasons(replies: Catalogue, served: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Why clients do not use models that they were served, as they say, and who says so."""
    said: dict[str, dict[str, str]] = {}  # of each owner: what each reporter says
    for reporter, r in sorted(replies.items()):
        for owner, why in r["refused"].items():
            if owner in served[reporter]:
                said.setdefault(owner, {})[reporter] = printable(why)
    return {owner: _reported(by) for owner, by in said.items()}


def _reported(said: Mapping[str, str]) -> str:
    """The first reason, and who gave one.

    >>> _reported({"b": "client a: no model", "c": "client a: too large"})
    'client a: no model (reported by b and 1 other)'
    """
    first, *rest = said
    more = f" and {len(rest)} other{'s' * (len(rest) > 1)}" if rest else ""
    return f"{said[first]} (reported by {first}{more})"


def seen(state: Tree, replies: Catalogue, served: Mapping[str, Collection[str]]) -> dict[str, Tree]:
    """What clients found out about the models that they were served, and about no others; who stacked again found out
    anew."""
    found_out = {c: _found_out(r, {*served[c]} - {c}) for c, r in replies.items()}
    return {**state.get("seen", {}), **found_out}


def _found_out(reply: Tree, served: set[str]) -> Tree:
    skill = {c: v for c, v in reply["skill"].items() if c in served or c == OWN}
    pairs = {(a, b) for a, b in map(sorted, reply["alike"]) if a != b and {a, b} <= served}
    return {"skill": skill, "alike": [list(p) for p in sorted(pairs)], "served": sorted(served)}


# ---- what a client is served ----


def manifest_of(tree: Tree) -> Manifest:
    return Manifest.from_json(tree["manifest"].numpy().tobytes())


def announced(versions: Sequence[Tree]) -> dict[str, Any]:
    """What a client published, for people: all versions in words, and what their owner claims of privacy."""
    manifests = [manifest_of(v) for v in versions]
    claims = [m.privacy for m in manifests]
    return {
        "what": _versions_in_words(manifests),
        "epsilon": [p.epsilon for p in claims if p.epsilon is not None],
        "note": claims[-1].note if claims else "",
        "made_with": manifests[-1].made_with if manifests else "",
    }


def _versions_in_words(manifests: Sequence[Manifest]) -> str:
    if not manifests:
        return "nothing"
    more = [rounded_up(m.privacy.epsilon) for m in manifests[1:] if m.privacy.epsilon is not None]
    return in_words(manifests[0]) + (f", and versions with epsilon {', '.join(more)}" if more else "")


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
