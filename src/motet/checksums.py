"""Checksums of stored bytes: of a few parts, of rows, and of files that carry their own.

They find damage, such as a bit that flipped on a disk. They are no signatures: who may write a file can write
its checksum too. A file carries its checksum in a field of its JSON text, computed while the field holds zeros,
so that every byte of the file is covered. Files of earlier versions have none, and are read as they are.
Knows bytes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b, sha256

import msgspec

FIELD = "checksum"  # in a file's JSON; it should be the first field
BLANK = "0" * 64  # what the field holds while the checksum is computed
_SIZE = 16  # bytes of a row's checksum: chance makes two equal once in 2 ** 128
# the field as JSON, as JSON within a JSON text, and as a tree of the wire format
_PLACE = re.compile(rb'\\?"checksum\\?": ?(?:\{"is": ?)?\\?"([0-9a-f]{64})\\?"')


def checksum(*parts: str | int | bytes) -> bytes:
    """Of a few values; two lists of values that differ anywhere have different ones.

    >>> checksum("ab", "c") == checksum("a", "bc")
    False
    """
    return rows_checksum([parts])


def rows_checksum(rows: Iterable[Iterable[object]]) -> bytes:
    """Of rows of numbers, text and bytes, in their order."""
    return blake2b(msgspec.msgpack.encode(list(rows)), digest_size=_SIZE).digest()


def file_checksum(content: bytes) -> str:
    return sha256(content).hexdigest()


def with_checksum(content: bytes) -> bytes:
    """The content of a file, with its checksum in place of the zeros that its field holds.

    >>> content = with_checksum(('{"checksum": "' + BLANK + '", "rate": 0.5}').encode())
    >>> is_whole(content), is_whole(content.replace(b"0.5", b"0.7")), is_whole(b'{"rate": 0.5}')
    (True, False, None)
    """
    found = _PLACE.search(content)
    assert found and found[1] == BLANK.encode(), "the content has no field for its checksum"
    return content[: found.start(1)] + file_checksum(content).encode() + content[found.end(1) :]


def is_whole(content: bytes) -> bool | None:
    """Whether a file is as it was written; None where it says no checksum."""
    found = _PLACE.search(content)
    if not found:
        return None
    blank = content[: found.start(1)] + BLANK.encode() + content[found.end(1) :]
    return file_checksum(blank).encode() == found[1]
