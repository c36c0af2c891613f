"""Where a run's models lie: each distinct model in one file, and an index of the clients that share one.

A client's model is named by a path, models/CLIENT.safetensors. The file is there if no model that was written
before has the same bits; else models/index.json says which file holds the weights, and which facts are the
client's own. Runs of earlier versions have a file for each client and no index. Files carry their checksum, which
is checked before anything in them is used.
Knows paths, weights and the index. Does not know how models are made or used.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from torch import Tensor

from motet.atomic import write_atomically
from motet.checksums import BLANK, FIELD, is_whole, with_checksum
from motet.errors import Damaged, RunError

INDEX = "index.json"
Facts = dict[str, Any]


def model_path(folder: Path, client: str) -> Path:
    """The path that names a client's model; the global one, whose client is "", lies where no client's name can
    clash with it."""
    return folder / (f"models/{quote(client, safe=' ')}.safetensors" if client else "global.safetensors")


class ModelWriter:
    """Writes the models of one run, equal ones once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[str, tuple[Path, Facts]] = {}  # by digest of the weights
        self.index: dict[str, Facts] = {}

    def write(self, client: str, tensors: dict[str, Tensor], facts: Facts) -> None:
        path, key = model_path(self.folder, client), weights_digest(tensors)
        if key not in self.written:
            write_weights(path, tensors, facts)
            self.written[key] = path, facts
            return
        file, there = self.written[key]
        own = {k: v for k, v in facts.items() if k not in there or there[k] != v}
        self.index[path.name] = {"file": Path(os.path.relpath(file, path.parent)).as_posix(), "facts": own}
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write the index, if there is anything in it: only now do its clients have a model."""
        if self.index:
            content = json.dumps({FIELD: BLANK} | self.index, indent=1) + "\n"
            write_atomically(self.folder / "models" / INDEX, with_checksum(content.encode()))


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """The same for the same names, shapes and bits."""
    found = sha256()
    for name, t in sorted(tensors.items()):
        found.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        found.update(t.detach().contiguous().reshape(-1).numpy().view(np.uint8).data)
    return found.hexdigest()


def write_weights(path: Path, tensors: dict[str, Tensor], facts: Facts) -> None:
    from safetensors.torch import save

    write_atomically(path, with_checksum(save(in_own_memory(tensors), {"motet": facts_text(facts)})))


def in_own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those that share memory with one before, say of two models that start alike: a file holds each by
    itself."""
    seen: set[int] = set()
    found = {}
    for name, t in tensors.items():
        place = t.untyped_storage().data_ptr()
        found[name] = t.clone() if place in seen else t
        seen.add(place)
    return found


def facts_text(facts: Facts) -> str:
    """What a model's file says of it, with a place for the file's checksum."""
    return json.dumps({FIELD: BLANK} | facts | {FIELD: BLANK})  # the first of all fields


# ---- reading ----


def read_whole(path: Path) -> bytes:
    """A file's bytes, as they were written; damaged ones are refused. Files of earlier versions are not checked."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise RunError(f"cannot read {path}: {e.strerror}") from e
    if is_whole(content) is False:
        raise Damaged(
            f"{path} is damaged: its checksum does not match.\n"
            "hint: restore it from a copy; motet run … --fresh writes a run's models anew"
        )
    return content


def read_facts(text: str | None) -> Any:
    """What a model's file says of it; anything but a dict is no model of motet's."""
    facts = json.loads(text or "null")
    return {k: v for k, v in facts.items() if k != FIELD} if isinstance(facts, dict) else facts


def stored(path: Path) -> tuple[Path, Facts] | None:
    """The file with the weights of the model that `path` names, and facts in place of those in the file."""
    if path.exists():
        return path, {}
    index = path.parent / INDEX
    if not index.exists():
        return None
    content = read_whole(index)
    try:
        entry = json.loads(content).get(path.name)
        found = (path.parent / entry["file"], dict(entry["facts"])) if entry else None
    except (ValueError, TypeError, LookupError, AttributeError) as e:
        raise RunError(f"{index} is no index of models: {e}") from None
    return found if found and found[0].exists() else None


def copy_model(path: Path, to: Path) -> None:
    """A file that holds the model with its own facts, wherever its weights are stored."""
    from safetensors import safe_open

    where, own = stored(path) or (path, {})
    content = read_whole(where)
    if not own:
        to.write_bytes(content)
        return
    with safe_open(str(where), "pt") as file:
        facts = read_facts(file.metadata()["motet"]) | own
        write_weights(to, {k: file.get_tensor(k) for k in file.keys()}, facts)  # noqa: SIM118
