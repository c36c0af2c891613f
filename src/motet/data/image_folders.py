"""The user's own images: a folder for each class, or a folder for each client with folders for classes.

Knows folders and images. Does not know how rows are divided among clients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data import cached_images
from motet.data.federated import DataError, Pixels, Pool, refuse
from motet.data.files.array_cache import keep, key
from motet.data.files.image_formats import SERVER_TEST, in_threads, opened
from motet.data.files.local_files import memory, regular

if TYPE_CHECKING:
    from PIL.Image import Image

VERSION = 1  # of what is decoded here
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LAYOUT = "folder/CLASS/*.png, or folder/CLIENT/CLASS/*.png; either also in folder/train/ and folder/test/"
_SHOWN = 5
_DEEPEST = 4  # train, client, class, image


def load(
    path: str,
    *,
    size: int = 0,  # resize all images to size x size pixels; 0: they have one size already
    grey: bool = False,  # one channel instead of three
) -> Pool:
    """Images by class, and by client if folders say so; those in test/ are the server's."""
    if size < 0:
        raise DataError(f"size is {size}; expected a number of pixels, or 0")
    root = Path(path).expanduser().resolve()
    files = sorted(_walk(root))
    rows = [ImageFile.of(f) for f in files]
    refuse(_problems(rows, path))
    stats = [regular(root / f).stat() for f in files]
    facts = [(f, fact.st_size, fact.st_mtime_ns) for f, fact in zip(files, stats, strict=True)]
    arrays_key = key([VERSION, str(root), size, grey, facts])
    slug = re.sub(r"\W", "_", root.name)
    found = keep(f"folder_{slug}", arrays_key, lambda: decode(root, rows, size, grey))
    return cached_images.pool(found, tuple(map(str, found["classes"])), neutral(grey))


def neutral(grey: bool) -> Pixels:
    """Scales pixels to -1 to 1. Means of pixels are not used: they would come from test images too."""
    return Pixels((0.5,), (0.5,)) if grey else Pixels((0.5,) * 3, (0.5,) * 3)


@dataclass(frozen=True)
class ImageFile:
    """One image: its file, and what its folders say about it."""

    file: str
    part: int  # 4 in test/, -1 in train/, 0 if there is neither
    client: str
    kind: str
    depth: int  # of folders, without train or test

    @classmethod
    def of(cls, file: str) -> ImageFile:
        *folders, _ = file.split("/")
        part = {"train": -1, "test": SERVER_TEST}.get(folders[0], 0) if len(folders) > 1 else 0
        folders = folders[1:] if part else folders
        client = folders[0] if len(folders) == 2 else ""
        return cls(file, part, client, folders[-1] if folders else "", len(folders))


def holds_images(path: Path) -> bool:
    """Whether a folder has images and no tables."""
    if not path.is_dir() or any(p.suffix in (".csv", ".parquet") for p in path.iterdir()):
        return False
    return next(_walk(path), None) is not None


def _walk(root: Path) -> Iterator[str]:
    """All images in a folder and its subfolders, as relative paths with /; without hidden ones."""
    for at, below, files in os.walk(root):
        inside = Path(at).relative_to(root)
        below[:] = [b for b in below if not b.startswith(".") and len(inside.parts) < _DEEPEST]
        for file in files:
            if file.lower().endswith(ENDINGS) and not file.startswith("."):
                yield (inside / file).as_posix()


def _problems(rows: list[ImageFile], path: str) -> list[str]:
    if not rows:
        return [f"{path} holds no images.\nhint: expected {LAYOUT}"]
    depths = {row.depth: row.file for row in rows}
    if len(depths) > 1 or next(iter(depths)) not in (1, 2):
        where = ", ".join(depths[d] for d in sorted(depths))
        return [
            f"the classes of the images of {path} cannot be read from their folders: {where}.\n"
            f"hint: expected {LAYOUT}"
        ]
    parts = {row.part: row.file for row in rows}
    if 0 in parts and len(parts) > 1:
        return [
            f"{path} has train/ or test/, and other folders beside them: {parts[0]}.\nhint: expected {LAYOUT}"
        ]
    if set(parts) == {SERVER_TEST}:
        return [f"{path} has test/ and no train/.\nhint: expected {LAYOUT}"]
    if len({row.kind for row in rows}) < 2:
        return [f"all images of {path} are of one class: {rows[0].kind}.\nhint: expected {LAYOUT}"]
    return []


def decode(root: Path, rows: list[ImageFile], size: int, grey: bool) -> dict[str, np.ndarray]:
    """All images as bytes of one shape, with their classes, clients and parts."""

    def read(i: int) -> np.ndarray:
        path = root / rows[i].file
        with opened(path.read_bytes(), path) as image:
            return shaped(image, path, size, grey)

    found = {"x": stack(read, [row.file for row in rows])}
    kinds, found["y"] = np.unique([row.kind for row in rows], return_inverse=True)
    found["classes"] = kinds
    if rows[0].client:
        found["names"], found["owner"] = np.unique([row.client for row in rows], return_inverse=True)
    if rows[0].part:
        found["part"] = np.array([row.part for row in rows], np.int8)
    return found


def stack(read: Callable[[int], np.ndarray], names: list[str]) -> np.ndarray:
    """read(i) of every image in one array (N, height, width, channels); refuses images of other sizes."""
    first = read(0)
    if (take := len(names) * first.size) > memory() // 2:
        high, wide, _ = first.shape
        raise DataError(
            f"{len(names):,} images of {wide} x {high} pixels take {take:,} bytes, more than half of this machine's "
            f"memory ({memory():,}).\nhint: data.size=64 makes them smaller"
        )
    x = np.empty((len(names), *first.shape), np.uint8)
    wrong: dict[int, str] = {}

    def put(i: int) -> None:
        try:
            image = read(i)
        except DataError as e:
            wrong[i] = str(e)
            return
        if image.shape == first.shape:
            x[i] = image
        else:
            (h, w, _), (high, wide, _) = image.shape, first.shape
            wrong[i] = (
                f"{names[i]} is {w} x {h} pixels, and {names[0]} is {wide} x {high}.\n"
                f"hint: say size = {min(high, wide)}"
            )

    in_threads(put, range(len(names)))
    more = [f"and {len(wrong) - _SHOWN} more images"] if len(wrong) > _SHOWN else []
    refuse([wrong[i] for i in sorted(wrong)][:_SHOWN] + more)
    return x


def shaped(image: Image, path: object, size: int, grey: bool) -> np.ndarray:
    """An image as bytes (height, width, 1 or 3), upright, and resized if size is not 0."""
    from PIL import Image, ImageOps

    if image.mode[0] in "IF":
        raise DataError(f"{path} has pixels of mode {image.mode}; expected 8 bits for each channel")
    try:
        image = ImageOps.exif_transpose(image).convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError) as e:  # Pillow's errors for damaged images
        raise DataError(f"{path} is damaged: {e}") from e
    if size:
        image = image.resize((size, size), Image.Resampling.BICUBIC)
    values = np.asarray(image)
    return values[..., None] if grey else values
