"""Images as arrays of bytes (N, height, width, channels), read from the formats of data sets.

Knows formats: idx, CIFAR's binary records, sheets of many images, single pictures. Does not know which data set
it reads. Archives are read member by member and never unpacked, so their paths lead nowhere.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from motet.data.federated import DataError
from motet.data.files.download import checksum
from motet.data.files.local_files import compare, content, find, reading

if TYPE_CHECKING:
    from PIL.Image import Image

SERVER_TEST = 4  # the part of official test images; the others are -1: not decided
_ROW = 50  # images in a row of a sheet, and rows in a sheet
SHEET = _ROW * _ROW
_MOST_PIXELS = 1 << 26  # of one image: it takes four bytes a pixel while it is read, in several threads


# ---- idx, the format of MNIST ----


def idx(path: Path, shape: tuple[int, ...] = (), md5: str = "") -> np.ndarray:
    """An idx file of bytes, which must have this shape and, unpacked, this md5."""
    found = idx_array(content(path, md5=md5), path)
    if shape and found.shape != shape:
        raise DataError(f"{path} holds an array of shape {found.shape}; expected {shape}")
    return found


def idx_array(raw: bytes, path: object) -> np.ndarray:
    """The array of an unpacked idx file of bytes."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(
            f"{path} is no idx file of bytes: it begins with {raw[:4].hex(' ')}; expected 00 00 08 .."
        )
    many = raw[3]
    start = 4 + 4 * many
    found = struct.unpack(f">{many}I", raw[4:start]) if len(raw) >= start else ()
    if len(raw) < start or len(raw) - start != int(np.prod(found)):
        raise DataError(
            f"{path} is damaged: {len(raw)} bytes, and its first ones speak of {' x '.join(map(str, found))}"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(found)


def four_idx(
    folder: Path,
    md5: Mapping[str, str],
    packed: bool = False,
    many: tuple[int, int] = (60000, 10000),
    side: int = 28,
) -> dict[str, np.ndarray]:
    """The four files of MNIST and Fashion-MNIST; `md5` by name without .gz, of the packed or unpacked files."""
    found = []
    for which, rows in zip(("train", "t10k"), many, strict=True):
        for what, shape in (("images-idx3", (rows, side, side)), ("labels-idx1", (rows,))):
            name = f"{which}-{what}-ubyte"
            path = find(folder, name, name.replace("-idx", ".idx"))
            expected = md5.get(name, "")
            if packed and path.suffix == ".gz":
                compare(path, "md5", checksum(path, "md5") if expected else "", expected)
            found.append(idx(path, shape, "" if packed else expected))
    x, y = np.concatenate(found[0::2])[..., None], np.concatenate(found[1::2])
    return {"x": x, "y": y, "part": parts(*many)}


def parts(train: int, test: int) -> np.ndarray:
    """The part of each row; training images come first."""
    return np.repeat(np.array([-1, SERVER_TEST], np.int8), [train, test])


# ---- CIFAR's binary records ----


def records(
    path: Path, members: Mapping[str, int], words: Sequence[str], labels: int, md5: str = "", side: int = 32
) -> tuple[np.ndarray, np.ndarray, list[list[str]]]:
    """Images (N, side, side, 3), labels (N, labels), and the lines of the text members.

    `members` are the archive's files of records, in order, with the number of records each must have:
    `labels` bytes, then all red, green and blue values.
    """
    compare(path, "md5", checksum(path, "md5") if md5 else "", md5)
    length = labels + 3 * side * side
    limits = {name: many * length for name, many in members.items()} | dict.fromkeys(words, 1 << 16)
    raw = _members(path, limits)
    for name, many in members.items():
        if len(raw[name]) != many * length:
            raise DataError(
                f"{path}: {name} has {len(raw[name])} bytes; expected {many} records of {length} bytes"
            )
    rows = np.concatenate([np.frombuffer(raw.pop(n), np.uint8).reshape(-1, length) for n in members])
    x = rows[:, labels:].reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    lines = [[w for w in raw[n].decode("ascii", "replace").split("\n") if w.strip()] for n in words]
    return np.ascontiguousarray(x), rows[:, :labels].copy(), [[w.strip() for w in one] for one in lines]


def _members(path: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """The named files of a tar archive, read up to one byte beyond the limit, so that longer ones are noticed."""
    found: dict[str, bytes] = {}
    damaged = reading(path, "no tar.gz archive")
    with damaged, gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for member in archive:
            if member.isfile() and member.name in limits and (file := archive.extractfile(member)):
                found[member.name] = file.read(limits[member.name] + 1)
    if lacking := [n for n in limits if n not in found]:
        raise DataError(f"{path} has no {', '.join(lacking)}.\nhint: is it the binary version?")
    return found


# ---- sheets: 50 x 50 images in one lossless image ----


def sheets(folder: Path, prefix: str, many: int, sha256: str = "", side: int = 32) -> np.ndarray:
    """Images from `prefix_00.webp` and so on, row by row; the checksum is that of all their bytes."""
    x = np.empty((many, side, side, 3), np.uint8)

    def put(i: int) -> None:
        path = folder / f"{prefix}_{i:02}.webp"
        sheet = picture(_bytes(path), path, (_ROW * side, _ROW * side))
        tiles = sheet.reshape(_ROW, side, _ROW, side, 3).swapaxes(1, 2).reshape(SHEET, side, side, 3)
        x[i * SHEET : (i + 1) * SHEET] = tiles[: many - i * SHEET]

    in_threads(put, range(-(-many // SHEET)))
    path = folder / f"{prefix}_*.webp"
    compare(path, "sha256", hashlib.sha256(x.data).hexdigest() if sha256 else "", sha256)
    return x


def table_of(path: Path, **kinds: str) -> dict[str, np.ndarray]:
    """The named arrays of an .npz file, each of the expected kind of numbers or text."""
    with reading(path, "no .npz file"), np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    if lacking := [n for n, kind in kinds.items() if n not in found or found[n].dtype.kind not in kind]:
        raise DataError(f"{path} has no fitting {', '.join(lacking)}; it has {', '.join(found)}")
    return found


# ---- single images ----


def picture(raw: bytes, path: object, size: tuple[int, int] | None = None) -> np.ndarray:
    """A colour image, (height, width, 3); `size` is the (width, height) that it must have."""
    with opened(raw, path) as image:
        if size and image.size != size:
            raise DataError(
                f"{path} is {image.width} x {image.height} pixels; expected {size[0]} x {size[1]}"
            )
        try:
            return np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError) as e:  # Pillow's errors for damaged images
            raise DataError(f"{path} is damaged: {e}") from e


def opened(raw: bytes, path: object) -> Image:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(raw))
        if image.width * image.height > _MOST_PIXELS:
            raise DataError(
                f"{path} is {image.width} x {image.height} pixels; at most {_MOST_PIXELS:,} are read.\n"
                "hint: cut it into tiles, or make it smaller"
            )
        return image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as e:
        raise DataError(f"{path} is damaged or no picture: {e}") from e


def in_threads(do: Callable[[int], None], over: Iterable[int]) -> None:
    """Call f in several threads, since decoding releases the lock; the first error ends it."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(do, over):
            pass


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path.parent} has no {path.name}.\nhint: get it again") from None
