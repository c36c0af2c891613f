"""Shakespeare's plays (LEAF; McMahan et al. 2017): predict the next character of what a role says.

Roles, text and windows as LEAF's (Caldas et al. 2018): an example is 80 characters and the one that
follows; of a role's windows the first 80 % are for training and, after a gap of 79, the rest for
testing: no character of an input is in both. PAGE (Chen et al. 2024) takes 100 random roles of
those with more than 7,000 training and 1,000 test windows: 7,000 consecutive windows of each for the client (70 %
for training, 30 % for its test) and 1,000 for the server.
Differs from LEAF: the licence, which its patterns take for two roles of The Comedy of Errors, is left out.
Differs from PAGE: a third of a client's test windows are validation. The parts of a client follow each other
in the text without a gap: inputs of neighbouring windows overlap, targets do not.

Knows windows, parts and which roles are drawn. Does not know how roles are found in the text (files/plays.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from motet.data.federated import PARTS, DataError, Pool, refuse
from motet.data.files import frames, plays
from motet.data.files.cache import arrays
from motet.data.files.download import Remote
from motet.data.splits.assignment import generator

SOURCES = (
    Remote(
        "t8.shakespeare.txt",
        "https://ocw.mit.edu/ans7870/6/6.006/s08/lecturenotes/files/t8.shakespeare.txt",
        5_458_199,
        md5="d2028225a89d8b0b3093dddb720da91f",
    ),
)
FOLDERS = ("shakespeare",)
ORIGIN = (
    "MIT's copy of Project Gutenberg's first Complete Works, t8.shakespeare.txt; or what LEAF takes, "
    "www.gutenberg.org/files/100/old/1994-01-100.zip, as it is or unpacked (100.txt)"
)

LENGTH = 80  # characters of an input
_UNUSED = len(PARTS)  # a part that is not used
_CLASSES = tuple({"\n": "newline", " ": "space"}.get(c, c) for c in plays.ALPHABET)


def load(
    *,
    seed: int,
    users: int = 100,  # roles drawn by data.seed
    least: int = 8000,  # windows that a role must have
    crop: int = 7000,  # consecutive windows of a client: 70 % train, 10 % validation, 20 % test; 0: all
    server: int = 1000,  # consecutive windows of each role's test part for the server's test set
) -> Pool:
    """Windows of 80 characters as codes from 0 to 79, and the next code; the clients are roles."""
    return pool(arrays("shakespeare"), seed, users, least, crop, server)


def decode(folder: Path) -> dict[str, np.ndarray]:
    """The text of all roles as codes, the start of each role (and the end), and the roles' names."""
    said = {name: text for name, text in plays.read(folder).items() if len(text) > LENGTH}
    lengths = [len(text) for text in said.values()]
    return {
        "text": plays.encode("".join(said.values())),
        "start": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "names": frames.as_bytes(f"{play}: {role}" for play, role in said),
    }


@dataclass(frozen=True)
class Stretch:
    """Consecutive windows of one client: the first character, and the number of windows of each part."""

    owner: int
    start: int
    parts: tuple[tuple[int, int], ...]  # (part, windows)

    @property
    def windows(self) -> int:
        return sum(many for _, many in self.parts)


def pool(
    found: Mapping[str, np.ndarray],
    seed: int,
    users: int = 100,
    least: int = 8000,
    crop: int = 7000,
    server_test: int = 1000,
) -> Pool:
    low = {"users": (users, 1), "least": (least, 0), "crop": (crop, 0), "server": (server_test, 0)}
    refuse([f"{k} is {got}; expected at least {no}" for k, (got, no) in low.items() if got < no])
    windows = np.diff(found["start"]) - LENGTH
    fit = np.flatnonzero(qualified(windows, least, crop, server_test))
    asked = f"{least} windows, more than {crop} to train with and more than {server_test} to test on"
    if not len(fit):
        raise DataError(f"no role has {asked}.\nhint: take a smaller least, crop or server")
    chosen = np.sort(generator("shakespeare", seed, "roles").permutation(fit)[:users]).tolist()
    names = frames.as_texts(found["names"][chosen])
    stretches = []
    for i, (role, name) in enumerate(zip(chosen, names, strict=True)):
        rng, start = generator("shakespeare", seed, name), int(found["start"][role])
        stretches += cut(i, start, int(windows[role]), crop, server_test, rng)
    notes = [f"{len(chosen)} roles are drawn of {len(fit)} that have {asked}, of {len(windows)} in all"]
    if len(chosen) < users:
        notes.append(f"{users} roles were asked for (option users), and only {len(chosen)} qualify")
    return _lay(found["text"], stretches, names, notes)


def qualified(windows: np.ndarray, least: int, crop: int, server_test: int) -> np.ndarray:
    """Which roles have enough windows, so that each part of the client has some."""
    train, test = leaf_split(windows)
    return (windows >= least) & (train > max(crop, 9)) & ((test > server_test) | (server_test == 0))


def leaf_split(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a role's training and test windows in LEAF; 79 windows between them are not used."""
    train = (0.8 * windows).astype(np.int64)
    return train, np.maximum(windows - train - (LENGTH - 1), 0)


def cut(
    owner: int, start: int, windows: int, crop: int, server_test: int, rng: np.random.Generator
) -> list[Stretch]:
    """Two runs of consecutive windows at random places: of the training windows and of the test windows."""
    train, test = (int(n) for n in leaf_split(np.array(windows)))
    many = crop or train
    home = start + int(rng.integers(train - many + 1))
    away = start + windows - test + int(rng.integers(test - server_test + 1))
    taught = (many * 7 + 5) // 10
    val = (many - taught) // 3
    parts = ((0, taught), (1, val), (2, many - taught - val))
    both = [Stretch(owner, home, parts), Stretch(owner, away, ((PARTS.index("server_test"), server_test),))]
    return both if server_test else both[:1]


def _lay(text: np.ndarray, stretches: list[Stretch], names: tuple[str, ...], notes: list[str]) -> Pool:
    """The text that is used, in one piece; a window that begins in the last 80 characters of a role would reach into
    the next role, and is not used."""
    text = np.concatenate([text[s.start : s.start + s.windows + LENGTH] for s in stretches])
    runs = [run for s in stretches for run in (*s.parts, (_UNUSED, LENGTH))]
    part = np.repeat([p for p, _ in runs], [many for _, many in runs])[:-LENGTH].astype(np.int8)
    owner = np.repeat([s.owner for s in stretches], [s.windows + LENGTH for s in stretches])[:-LENGTH]
    x = sliding_window_view(text, LENGTH)[:-1]  # (windows, 80), a view
    y = text[LENGTH:].astype(np.int64)
    digest = hashlib.sha256(text.tobytes()).hexdigest()  # x and y are views of the text
    return Pool(x, y, "classes", _CLASSES, (), owner, names, part, scaling="none", notes=notes, digest=digest)
