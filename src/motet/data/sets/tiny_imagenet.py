"""Tiny ImageNet (Le and Yang 2015): colour images of 64 x 64 in 200 classes, 500 of each and 50 for validation."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from motet.data.cached_images import pool
from motet.data.federated import DataError, Pixels, Pool
from motet.data.files.cache import arrays
from motet.data.files.download import Remote, checksum
from motet.data.files.image_formats import in_threads, parts, picture
from motet.data.files.local_files import compare, reading

SOURCES = (
    Remote(
        "tiny-imagenet-200.zip",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        248100043,
        md5="90528d7ca1a48142e341f4ef8d21d0de",
    ),
)
FOLDERS = ("tiny_imagenet", "tiny-imagenet-200", "TinyImageNet")
ORIGIN = "Tiny ImageNet is tiny-imagenet-200.zip of cs231n.stanford.edu"
SIDE = 64
EACH = (500, 50)  # training and validation images of every class
PIXELS = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's
_TOP = "tiny-imagenet-200/"
_LARGEST = 1 << 20  # bytes of a member; the images have a few thousand
Found = dict[tuple[str, str], dict[int, str]]  # (train or val, class): number of the image -> member


def decode(folder: Path) -> dict[str, np.ndarray]:
    """The official archive, or one with some of the classes and a table of their names."""
    official = folder / SOURCES[0].file
    if official.is_file():
        compare(official, "md5", checksum(official, "md5"), SOURCES[0].md5)
        return whole(official)
    some = sorted(folder.glob("classes_*.zip"))
    if not some:
        raise DataError(f"{folder} has no {SOURCES[0].file}.\nhint: {ORIGIN}")
    return excerpt(some[0], folder / "wnids_words.tsv")


def whole(path: Path, each: tuple[int, int] = EACH) -> dict[str, np.ndarray]:
    """The official layout: validation images are in one folder, and a table has their classes."""
    with _archive(path) as archive:
        order = _text(archive, path, f"{_TOP}wnids.txt").split()
        lines = [line.split("\t") for line in _text(archive, path, f"{_TOP}words.txt").splitlines()]
        parts = [
            line.split("\t") for line in _text(archive, path, f"{_TOP}val/val_annotations.txt").splitlines()
        ]
        kind = {line[0]: line[1] for line in parts if len(line) > 1}
        found: Found = {}
        for name in archive.namelist():
            if m := re.fullmatch(rf"{_TOP}train/(n\d+)/images/n\d+_(\d+)\.JPEG", name):
                found.setdefault(("train", m[1]), {})[int(m[2])] = name
            elif m := re.fullmatch(rf"{_TOP}val/images/(val_(\d+)\.JPEG)", name):
                found.setdefault(("val", kind.get(m[1], "")), {})[int(m[2])] = name
        words = {line[0]: line[1] for line in lines if len(line) > 1}
        return _read(archive, path, found, [(w, words.get(w, w)) for w in order], each)


def excerpt(path: Path, table: Path, each: tuple[int, int] = EACH) -> dict[str, np.ndarray]:
    """Some of the classes: train/CLASS/ and val/CLASS/, and a table with number, class and words."""
    try:
        lines = [line.split("\t") for line in table.read_text().splitlines()]
        order = [(line[1], line[2]) for line in lines if line]
    except (OSError, UnicodeDecodeError, IndexError) as e:
        raise DataError(f"{table} cannot be read: {e}; expected number, class and words in each line") from e
    with _archive(path) as archive:
        found: Found = {}
        for name in archive.namelist():
            if m := re.fullmatch(r"(train|val)/(n\d+)/\w+?_(\d+)\.JPEG", name):
                found.setdefault((m[1], m[2]), {})[int(m[3])] = name
        return _read(archive, path, found, [o for o in order if ("train", o[0]) in found], each)


def _read(
    archive: zipfile.ZipFile, path: Path, found: Found, order: list[tuple[str, str]], each: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Training images, then validation ones; both by class, then by number: the same from every layout."""
    for which, many in zip(("train", "val"), each, strict=True):
        for wnid, words in order or [("", "any class")]:
            if (got := len(found.get((which, wnid), ()))) != many:
                raise DataError(f"{path} has {got} {which} images of {words} {wnid}; expected {many}")
    members = [m for which in ("train", "val") for w, _ in order for _, m in sorted(found[which, w].items())]
    x = np.empty((len(members), SIDE, SIDE, 3), np.uint8)

    def put(i: int) -> None:
        x[i] = picture(_member(archive, path, members[i]), f"{path}: {members[i]}", (SIDE, SIDE))

    in_threads(put, range(len(members)))
    y = np.concatenate([np.repeat(np.arange(len(order), dtype=np.int16), many) for many in each])
    part = parts(len(order) * each[0], len(order) * each[1])
    return {"x": x, "y": y, "part": part, "classes": np.array(_distinct(order))}


def _distinct(order: list[tuple[str, str]]) -> list[str]:
    """The names of the classes; two classes with the same name also have their number in WordNet."""
    words = [w for _, w in order]
    return [w if words.count(w) == 1 else f"{w} ({wnid})" for wnid, w in order]


def _archive(path: Path) -> zipfile.ZipFile:
    with reading(path, "no zip archive"):
        return zipfile.ZipFile(path)


def _member(archive: zipfile.ZipFile, path: Path, name: str, largest: int = _LARGEST) -> bytes:
    try:
        with archive.open(name) as file:
            return file.read(largest)
    except KeyError:
        raise DataError(f"{path} has no {name}.\nhint: is it the official archive?") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise DataError(f"{path}: {name} is damaged: {e}.\nhint: get it again") from e


def _text(archive: zipfile.ZipFile, path: Path, name: str) -> str:
    return _member(archive, path, name, 1 << 24).decode("utf-8", "replace")


def load(
    *,
    augment: bool = False,  # shift and flip training images at random
) -> Pool:
    """Colour images; the official validation images are the server's test set."""
    found = arrays("tiny_imagenet")
    made = pool(found, tuple(map(str, found["classes"])), PIXELS, augment=augment)
    if (many := len(made.classes)) < 200:
        made.notes.append(f"these are {many} of the 200 classes of Tiny ImageNet")
    return made
