"""What single clients of a simulation publish: their own family, or a model of theirs from an outbox.

    method.public_of = ["client-3: dp-linear epsilon=1 columns=age,bp", "client-4: nothing"]
    method.outbox = "outbox"    # with client-5.onnx and client-5.json, as motet.save_published writes them

Between organisations each site chooses by its own policy, and what is written here is a wish.
Knows words, folders and rows. Does not know servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from motet.errors import UsageError
from motet.published import ModelRefused, Published
from motet.published.folder import load
from motet.published.public_choice import NOTHING, OUTBOX, PublicChoice
from motet.stacking.public_models import public_models
from motet.stacking.stack import StackRows

Tree = Any


def wishes(public_of: Sequence[str], outbox: str, clients: Sequence[str]) -> dict[str, Tree]:
    """What each client is told of what it is to publish: nothing, words, or a model of its own."""
    words = dict(said(line) for line in public_of)
    found: dict[str, Tree] = {c: words.get(c, ()) for c in clients}
    if not outbox:
        return found
    there = [c for c in clients if (Path(outbox) / f"{quote(c, safe=' ')}.onnx").exists()]
    return found | {c: loaded(outbox, c).tree() for c in there}


def said(line: str) -> tuple[str, str]:
    """A client and what it publishes."""
    client, colon, words = line.partition(":")
    if not colon or PublicChoice.of(words).family == OUTBOX:
        raise UsageError(
            f"method.public_of has {line!r}; expected a client, a colon and a family\n"
            'hint: method.public_of=["client-3: dp-linear epsilon=1"]; an outbox is method.outbox=FOLDER'
        )
    return client.strip(), words.strip()


def loaded(folder: str, client: str) -> Published:
    try:
        return load(folder, client)
    except ModelRefused as e:
        raise UsageError(f"method.outbox: {e}\nhint: motet.save_published writes both files") from e


def wished(wish: Tree, usual: PublicChoice) -> PublicChoice:
    """The choice that words say; as usual without any."""
    return PublicChoice.of(wish, usual) if isinstance(wish, str) and wish else usual


def models_of_client(
    usual: PublicChoice, own: Any, wish: Tree, rows: StackRows, seed: int
) -> Sequence[Published]:
    """What a client publishes; `own` is an organisation's choice and store, None in a simulation."""
    make = partial(public_models, rows=rows, seed=seed, secret=own is not None)
    if own is not None:
        models: Sequence[Published] = own.models(wished(wish, usual), make)
        return models
    if isinstance(wish, dict):
        return [Published.from_tree(wish)]
    choice = wished(wish, usual)
    return [] if choice.family == NOTHING else make(choice)
