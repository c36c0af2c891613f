"""Published models as files: CLIENT.onnx and CLIENT.json beside each other in a folder.

That they are ordinary files, and their sizes, are checked before anything is read.
Knows files. Does not know how models run.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from motet.errors import UsageError
from motet.published.limits import USUAL, Limits
from motet.published.manifest import LONGEST, Manifest, ModelRefused, Published, same_bytes
from motet.published.model_check import sized


def save(model: Published, folder: str | Path) -> Path:
    """Write both files; returns the model's path."""
    to = Path(folder) / f"{quote(model.client, safe=' ')}.onnx"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(model.model)
    to.with_name(to.name.removesuffix(".onnx") + ".json").write_text(model.manifest.to_json())
    return to


def load(folder: str | Path, client: str, limits: Limits = USUAL) -> Published:
    """The model that `client` has published there; raises ModelRefused."""
    name = quote(client, safe=" ")
    manifest = Manifest.from_json(_read(Path(folder) / f"{name}.json", client, "manifest", LONGEST), client)
    sized(manifest, limits)
    model = Published(manifest, _read(Path(folder) / f"{name}.onnx", client, "model", limits.size))
    same_bytes(manifest, model.model)
    return model


def load_all(folder: str | Path, limits: Limits = USUAL) -> tuple[list[Published], dict[str, str]]:
    """All models that are published there, in the order of names; and by client why others were refused."""
    if not Path(folder).is_dir():
        raise UsageError(f"there is no folder {str(folder)!r}\nhint: save_published(made, folder) writes one")
    models, refused = [], {}
    for path in sorted(Path(folder).glob("*.onnx")):
        client = unquote(path.name.removesuffix(".onnx"))
        try:
            models.append(load(folder, client, limits))
        except ModelRefused as e:
            refused[client] = str(e)
    return models, refused


def _read(path: Path, client: str, what: str, most: int) -> bytes:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ModelRefused(client, f"its {what} is no ordinary file")
            if found.st_size > most:
                raise ModelRefused(
                    client, f"its {what}'s file has {found.st_size} bytes, and at most {most} are allowed"
                )
            return file.read(most)
    except OSError as e:
        raise ModelRefused(client, f"its {what} cannot be read: {e.strerror}") from e


def _without_waiting(path: str, flags: int) -> int:
    """A pipe that nobody writes to is opened at once, instead of never."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
