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

_UNFIT = '%/\\:*?"<>|'  # in names of files, here or on other systems


def save(model: Published, folder: str | Path) -> Path:
    """Write both files; returns the model's path."""
    to = Path(folder) / f"{file_name(model.client)}.onnx"
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(model.model)
    _manifest(to).write_text(model.manifest.to_json())
    if (old := to.with_name(_old_name(model.client))) != to:  # one model of a client is there, not two
        for path in (old, _manifest(old)):
            path.unlink(missing_ok=True)
    return to


def file_name(client: str) -> str:
    """A client's name as that of a file: as people write it, but for what folders cannot hold, which is
    percent-encoded.

    >>> file_name("Klinik Süd"), file_name("a/b: 5%"), file_name(".ann")
    ('Klinik Süd', 'a%2Fb%3A 5%25', '%2Eann')
    """
    if client.startswith("."):  # not a hidden file
        return "%2E" + file_name(client[1:])
    return "".join(
        c if c.isprintable() and c not in _UNFIT else quote(c, safe="", errors="replace") for c in client
    )


def owner_of(path: Path) -> str:
    """The client whose model a file holds."""
    return unquote(path.name.removesuffix(".onnx"))


def load(folder: str | Path, client: str, limits: Limits = USUAL) -> Published:
    """The model that `client` has published there; raises ModelRefused."""
    return load_file(path_of(folder, client), client, limits)


def path_of(folder: str | Path, client: str) -> Path:
    """Where a client's model is, or would be."""
    path = Path(folder) / f"{file_name(client)}.onnx"
    old = path.with_name(_old_name(client))
    return old if old.exists() and not path.exists() else path


def load_file(path: Path, client: str, limits: Limits = USUAL) -> Published:
    """The model in a file, and its manifest beside it, which must name this client; raises ModelRefused."""
    manifest = Manifest.from_json(_read(_manifest(path), client, "manifest", LONGEST), client)
    sized(manifest, limits)
    model = Published(manifest, _read(path, client, "model", limits.size))
    same_bytes(manifest, model.model)
    return model


def _manifest(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".onnx") + ".json")


def _old_name(client: str) -> str:
    """As earlier versions wrote it."""
    return f"{quote(client, safe=' ')}.onnx"


def load_all(folder: str | Path, limits: Limits = USUAL) -> tuple[list[Published], dict[str, str]]:
    """All models that are published there, in the order of names; and by client why others were refused."""
    if not Path(folder).is_dir():
        raise UsageError(f"there is no folder {str(folder)!r}\nhint: save_published(made, folder) writes one")
    models, refused = [], {}
    for path in sorted(Path(folder).glob("*.onnx")):
        client = owner_of(path)
        try:
            models.append(load_file(path, client, limits))
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
