"""Shakespeare's complete works in one text file: the speeches of each role.

Knows the first edition of Project Gutenberg (1994) and how LEAF reads it: a work begins with its title
and "by William Shakespeare"; a speech begins with two spaces, a name and a full stop, and goes on with
four spaces; in The Comedy of Errors nothing is indented, and stage directions begin with "<". Roles of
at most two lines go. Does not know windows.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from motet.data.federated import DataError
from motet.data.files.frames import expect
from motet.data.files.local_files import content, find, reading

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's
_MIT, _ZIP = "t8.shakespeare.txt", "1994-01-100.zip"
_MD5 = "d2028225a89d8b0b3093dddb720da91f"
_PLAYS = 36
_FLAT = "THE COMEDY OF ERRORS"
_POEMS = ("THE SONNETS", "A LOVER'S COMPLAINT")  # the first and the last work of the file
_BY = "by William Shakespeare"
_LICENCE = re.compile(r"<<THIS ELECTRONIC VERSION.*?>>", re.DOTALL)
_END = "End. of the play"  # the end of the last speech, which looks like another speech
_SPEAKER = re.compile(r"([A-Za-z][A-Za-z ]*)\. (.*)")
Role = tuple[str, str]  # the play's title and the role's name
Speeches = dict[Role, list[list[str]]]  # every speech is a list of lines


def read(folder: Path) -> dict[Role, str]:
    """The text of each role in one line, joined as in LEAF; roles in order of appearance."""
    lines = {role: [line for speech in all_ for line in speech] for role, all_ in speeches(folder).items()}
    return {
        role: re.sub("  +", " ", " ".join([*spoken, ""])) for role, spoken in lines.items() if len(spoken) > 2
    }


def speeches(folder: Path) -> Speeches:
    """Every speech of every role, from the file that is there."""
    path = find(folder, _MIT, _ZIP, "100.txt", "raw_data.txt")
    lines = _LICENCE.sub("<", _text(path)).splitlines()
    found: Speeches = {}
    titles = []
    for title, start, end in works(lines):
        titles.append(title)
        if title not in _POEMS:
            for role, speech in spoken(lines[start:end], flat=title == _FLAT):
                found.setdefault((title, role), []).append(speech)
    expect(path, "plays", len(set(titles) - set(_POEMS)), _PLAYS)
    expect(path, "its last work", titles[-1], _POEMS[-1])  # what follows the last play: no play is cut
    return found


def _text(path: Path) -> str:
    if path.suffix != ".zip":
        return content(path, md5=_MD5 if _MIT in path.name else "").decode("latin-1")
    with reading(path), zipfile.ZipFile(path) as archive:
        texts = [name for name in archive.namelist() if name.endswith(".txt")]
        expect(path, "texts in it", len(texts), 1)
        return archive.read(texts[0]).decode("latin-1")


def works(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Title, first line and end of every work. The title is the nearest line above, two to seven lines up."""
    at = [i for i, line in enumerate(lines) if _BY in line]
    for i, end in pairwise([*at, len(lines)]):
        title = next((t.strip() for t in lines[i - 2 : max(i - 8, 0) : -1] if t.strip()), "")
        yield title, i + 1, end


def spoken(lines: list[str], flat: bool) -> Iterator[tuple[str, list[str]]]:
    """The speeches of a play: who speaks, and the lines.

    >>> list(spoken(["  Ham. To be,", "    or not", "Exit", "  KING. So."], flat=False))
    [('HAM', ['To be,', 'or not']), ('KING', ['So.'])]
    """
    margin = "" if flat else "  "
    role, speech = "", [""]
    for line in [*lines, margin + _END]:
        begins = _SPEAKER.match(line, len(margin)) if line.startswith(margin) else None
        if begins or (flat and line.startswith("<")):
            if role:
                yield role, speech
            role, speech = (begins[1].upper(), [begins[2]]) if begins else ("", [])
            if flat and role.startswith("ACT "):  # acts of the flat play are headed like speeches
                role = ""
        elif line.startswith(2 * margin):
            speech.append(line[2 * len(margin) :])


def encode(text: str) -> np.ndarray:
    """Codes of characters: their indices in the alphabet."""
    if strange := sorted(set(text) - set(ALPHABET)):
        raise DataError(
            f"the plays hold characters that are not in LEAF's alphabet: {' '.join(map(repr, strange))}.\n"
            "hint: take t8.shakespeare.txt"
        )
    codes = np.zeros(256, np.uint8)
    codes[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    return codes[np.frombuffer(text.encode(), np.uint8)]
