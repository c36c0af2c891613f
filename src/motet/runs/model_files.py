"""Where a run's models lie: each distinct model in one file, and an index of the clients that share one.

A client's model is named by a path, models/CLIENT.safetensors. The file is there if no model that was written
before has the same bits; else models/index.json says which file holds the weights, and which facts are the
client's own. Runs of earlier versions have a file for each client and no index.
Knows paths, weights and the index. Does not know how models are made or used.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from torch import Tensor

from motet.atomic import write_atomically
from motet.errors import RunError

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
            write_atomically(self.folder / "models" / INDEX, json.dumps(self.index, indent=1) + "\n")


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """The same for the same names, shapes and bits."""
    found = sha256()
    for name, t in sorted(tensors.items()):
        found.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        found.update(t.detach().contiguous().reshape(-1).numpy().view(np.uint8).data)
    return found.hexdigest()


def write_weights(path: Path, tensors: dict[str, Tensor], facts: Facts) -> None:
    from safetensors.torch import save

    write_atomically(path, save(tensors, {"motet": json.dumps(facts)}))


# ---- reading ----


def stored(path: Path) -> tuple[Path, Facts] | None:
    """The file with the weights of the model that `path` names, and facts in place of those in the file."""
    if path.exists():
        return path, {}
    index = path.parent / INDEX
    if not index.exists():
        return None
    try:
        entry = json.loads(index.read_text()).get(path.name)
        found = (path.parent / entry["file"], dict(entry["facts"])) if entry else None
    except (ValueError, TypeError, LookupError, AttributeError) as e:
        raise RunError(f"{index} is no index of models: {e}") from None
    return found if found and found[0].exists() else None


def copy_model(path: Path, to: Path) -> None:
    """A file that holds the model with its own facts, wherever its weights are stored."""
    from safetensors import safe_open

    found = stored(path)
    if found is None or not found[1]:
        shutil.copyfile(path, to)
        return
    with safe_open(str(found[0]), "pt") as file:
        facts = json.loads(file.metadata()["motet"]) | found[1]
        write_weights(to, {k: file.get_tensor(k) for k in file.keys()}, facts)  # noqa: SIM118
