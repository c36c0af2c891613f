"""What single clients of a simulation publish: their own family, or a model of theirs from an outbox.

    method.public_of = ["client-3: dp-linear epsilon=1 columns=age,bp", "client-4: nothing"]
    method.outbox = "outbox"    # with client-5.onnx and client-5.json, as motet.save_published writes them

Between organisations each site chooses by its own policy, and what is written here is a wish.
Knows words, folders and rows. Does not know servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from motet.errors import UsageError
from motet.published import ModelRefused, Published
from motet.published.folder import load, owner_of, path_of
from motet.published.outbox import Terms, defaults_stand_for, in_terms, is_pickle, terms_of
from motet.published.public_choice import NOTHING, OUTBOX, PublicChoice
from motet.stacking.catalogue import Tree
from motet.stacking.contribution import OWN
from motet.stacking.public_models import public_models
from motet.stacking.stack import StackRows
from motet.text import unknown

_HINT = "hint: motet.save_published writes CLIENT.onnx and CLIENT.json of a model that motet.publish made"


def terms_by_client(federated: Any, public_of: Sequence[str] = ()) -> dict[str, Terms]:
    """How a run has each client's columns, classes and targets, so that models speak of them in the table's units."""
    names = (*federated.clients_data, *federated.unseen)
    check_names(names)
    check_public_of(public_of, federated)
    return {c: terms_of(federated, c) for c in names}


def check_names(clients: Iterable[str]) -> None:
    """Refuse a client that is called as every client's own model is."""
    if OWN in clients:
        raise UsageError(
            f"a client is called {OWN!r}, as each client's own model is in its stack; expected another name\n"
            "hint: rename the client in the table, or its file"
        )


def wishes(
    public_of: Sequence[str], outbox: str, clients: Sequence[str], terms: Mapping[str, Terms] | None = None
) -> dict[str, Tree]:
    """What each client is told of what it is to publish: nothing, words, or a model of its own."""
    check_names(clients)
    words = dict(said(line) for line in public_of)
    found: dict[str, Tree] = {c: words.get(c, ()) for c in clients}
    if not outbox:
        return found
    check_outbox(Path(outbox), terms)
    there = [c for c in clients if path_of(outbox, c).exists()]
    return found | {c: loaded(outbox, c, (terms or {}).get(c)).tree() for c in there}


def check_public_of(public_of: Sequence[str], federated: Any) -> None:
    """Refuse a choice for a client that is not there: it would publish as usual, perhaps without privacy. Of clients
    that were left out (data.without) choices may stay; between organisations clients are not known yet."""
    known = [*federated.clients_data, *federated.unseen]
    for client, _ in map(said, public_of):
        if known and client not in (*known, *federated.left_out):
            raise UsageError(f"method.public_of: {unknown('client', client, known)}")


def remarks(outbox: str, terms: Mapping[str, Terms] | None) -> list[str]:
    """Which clients' own models read columns that their own rows lack; nothing of models that cannot be read, because
    the first round says that."""
    found = []
    for client in sorted(terms or {}) if outbox and Path(outbox).is_dir() else []:
        try:
            model = load(outbox, client)
        except ModelRefused:
            continue
        if said_of := defaults_stand_for(model, (terms or {})[client]):
            found.append(f"client {client}: {said_of}")
    return found


def said(line: str) -> tuple[str, str]:
    """A client and what it publishes."""
    client, colon, words = line.partition(":")
    if not colon or PublicChoice.of(words).family == OUTBOX:
        raise UsageError(
            f"method.public_of has {line!r}; expected a client, a colon and a family\n"
            'hint: method.public_of=["client-3: dp-linear epsilon=1"]; an outbox is method.outbox=FOLDER'
        )
    return client.strip(), words.strip()


def check_outbox(outbox: Path, terms: Mapping[str, Terms] | None) -> None:
    """Refuse a folder that is not there, that holds a pickle, or models of clients that are not."""
    files = sorted(outbox.iterdir()) if outbox.is_dir() else None
    if files is None:
        raise UsageError(f"method.outbox: there is no folder {outbox}\n{_HINT}")
    if pickled := next((p for p in files if is_pickle(p)), None):
        raise UsageError(
            f"{pickled} is a pickle: reading it could run any code, so nothing of it was read.\n{_HINT}"
        )
    owners = [owner_of(p) for p in files if p.suffix == ".onnx"]
    if terms and (strange := [c for c in owners if c not in terms]):
        raise UsageError(f"method.outbox: {unknown('client', strange[0], list(terms))}")


def loaded(folder: str, client: str, terms: Terms | None = None) -> Published:
    """A client's model, in the run's units and classes where these are known; classes may be numbered already. Names
    that the run does not have are said by those who would stack the model."""
    try:
        found = load(folder, client)
    except ModelRefused as e:
        raise UsageError(f"method.outbox: {e}\n{_HINT}") from e
    if terms is None or not terms.scaling:
        return found
    numbers = tuple(map(str, range(len(terms.classes))))
    for classes in (tuple(terms.classes), numbers):
        if {*found.manifest.classes} <= {*classes}:
            return in_terms(found, replace(terms, classes=classes), client)
    return found


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
