"""The outbox: a folder with the one model that its owner publishes, and that model in a federation's own terms.

A model in the outbox is what `motet.publish` and `save_published` wrote: ONNX and a manifest. It reads columns in
their own units and names classes; a federation standardises numbers and numbers its classes. So the model gets two
more operators, and its manifest other words. Nothing is unpickled.
Knows folders, manifests and scalings. Does not know sites.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from motet.errors import UsageError
from motet.published.folder import load_file, owner_of
from motet.published.graph import rescaled
from motet.published.manifest import Feature, Manifest, ModelRefused, Published
from motet.published.model_check import refuse
from motet.published.yes_no import EMPTY, reading
from motet.text import respelled

_HINT = "hint: motet.publish(model, …) where it was trained, then motet.save_published(made, 'outbox')"
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".sav", ".ckpt", ".dill")


@dataclass(frozen=True)
class Terms:
    """How a federation has its columns and its target."""

    scaling: Mapping[str, tuple[float, float]]  # of each column: middle and spread
    classes: Sequence[str] = ()  # names of classes, in their order; () for numbers
    target: tuple[float, float] = (0.0, 1.0)  # middle and spread of numbers that are predicted
    flags: frozenset[str] = frozenset()  # the columns that hold 0 and 1
    lacks: frozenset[str] = frozenset()  # the columns that this client does not hold


def from_outbox(folder: Path) -> Published:
    """The model that lies there, as it was saved; what cannot be published is refused in words."""
    files = sorted(p for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []
    if pickled := next((p for p in files if is_pickle(p)), None):
        raise UsageError(
            f"{pickled} is a pickle: reading it could run any code, so nothing of it was read.\n{_HINT}"
        )
    models = [p for p in files if p.suffix == ".onnx"]
    if len(models) != 1:
        raise UsageError(f"{folder} holds {len(models)} models as .onnx; one is published.\n{_HINT}")
    if not models[0].with_suffix(".json").exists():
        raise UsageError(f"{models[0]} has no manifest beside it, which names its columns.\n{_HINT}")
    try:
        found = load_file(models[0], owner_of(models[0]))
        refuse(found)
    except ModelRefused as e:
        raise UsageError(f"the model in {folder} cannot be published: {e.reason}\n{_HINT}") from e
    return found


def is_pickle(path: Path) -> bool:
    """By its name, or by its first bytes."""
    if path.suffix in _PICKLES:
        return True
    if not path.is_file() or path.suffix in (".onnx", ".json"):
        return False
    with path.open("rb") as file:
        first = file.read(2)
    return first[:1] == b"\x80" and first[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")


def in_terms(model: Published, terms: Terms, client: str = "public") -> Published:
    """The same model, as a federation reads columns and names classes."""
    model = reading(model, terms.scaling, terms.flags)
    said = model.manifest
    classes = _places(said, terms)
    known = [terms.scaling.get(f.name) for f in said.features]
    if not any(known):
        raise UsageError(
            f"the model in the outbox reads the columns {list(said.names)[:5]}, none of which this federation has\n"
            "hint: name columns as the federation does; a category of a column of text is 'column=category'"
        )
    scaling = [s or (0.0, 1.0) for s in known]
    raw = rescaled(model.model, scaling, terms.target)
    features = tuple(
        Feature(f.name, f.kind, (f.default - middle) / spread)
        for f, (middle, spread) in zip(said.features, scaling, strict=True)
    )
    about: Any = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return Published(replace(said, client=client, features=features, classes=classes, **about), raw)


def read_in_vain(model: Published, terms: Terms) -> list[str]:
    """The columns that a model reads and that its owner's own rows lack, in whatever form: defaults stand there. A
    category that other categories of its column stand beside is none of them: no row has it."""
    held = set(terms.scaling) - terms.lacks
    texts = {n.partition("=")[0] for n in held if "=" in n}
    read = reading(model, held, terms.flags & held).manifest.names
    lacking = [n for n in read if n not in held and not n.endswith(f"={EMPTY}")]
    return [n for n in lacking if "=" not in n or n.partition("=")[0] not in texts]


def defaults_stand_for(model: Published, terms: Terms) -> str:
    """A sentence about columns that a model of one's own reads and one's own rows lack; "" where there are none."""
    if not (lacking := read_in_vain(model, terms)):
        return ""
    some = ", ".join(map(repr, lacking[:5])) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
    return f"its model reads {some}, which its own table does not have here: published defaults stand there"


def terms_of(federated: Any, client: str = "") -> Terms:
    """How a run has columns and target. What standardises numbers is the same for all clients, unless each uses its
    own: then that of `client`."""
    scaler = federated.rulers.get(client) or next(iter(federated.rulers.values()), None)
    named = [c.name for c in federated.columns]
    names = named or [f"x{k}" for k in range(len(scaler.middle) if scaler else 0)]  # arrays have no names
    middle = scaler.middle if scaler else [0.0] * len(names)
    spread = scaler.spread if scaler else [1.0] * len(names)
    scaling = {n: (float(m), float(s)) for n, m, s in zip(names, middle, spread, strict=True)}
    flags = frozenset(c.name for c in federated.columns if c.kind == "flag")
    lacks = frozenset(c.name for c in _columns_at(federated, client) if not c.here)
    return Terms(scaling, federated.classes, (federated.offset, federated.scale), flags, lacks)


def _columns_at(federated: Any, client: str) -> Sequence[Any]:
    """The columns of a client, marked as held or not; of a site, which is alone here, its own."""
    everybody = {**federated.clients_data, **federated.unseen}
    known = everybody.get(client) or (next(iter(everybody.values())) if len(everybody) == 1 else None)
    return known.columns if known else ()


def _places(said: Manifest, terms: Terms) -> tuple[str, ...]:
    """The model's classes as positions among the federation's."""
    place = {name: str(k) for k, name in enumerate(terms.classes)}
    if bool(said.classes) != bool(place):
        ours = "classes" if place else "numbers"
        raise UsageError(f"the model in the outbox predicts {said.task}, and this federation {ours}\n{_HINT}")
    ours_for = respelled(said.classes, list(place))
    if strange := [c for c in said.classes if ours_for.get(c, c) not in place]:
        raise UsageError(
            f"the model in the outbox knows the class {strange[0]!r}, and this federation's are {list(place)[:5]}\n"
            "hint: motet.publish(…, classes=…) names the classes as the federation's table has them"
        )
    return tuple(place[ours_for.get(c, c)] for c in said.classes)
