"""Messages between a process and its child: a JSON header and raw bytes, with a deadline, never pickle.

Knows two file descriptors. Does not know what the messages mean.
"""

from __future__ import annotations

import json
import os
import selectors
import struct
import time
from typing import Any

_HEAD = struct.Struct("<IQ")  # lengths of the header and of the bytes
_HEADER = 64 << 20  # longest header; a manifest of 10,000 features has one megabyte


class Ended(Exception):
    """The other side has closed its end, or sent a malformed message."""


class Late(Exception):
    """The other side has not answered in time."""


class Pipe:
    """Reads from one descriptor and writes to another; each call may wait `seconds` at most, or for ever."""

    def __init__(self, read: int, write: int) -> None:
        self.read, self.write = read, write
        for fd in (read, write):
            os.set_blocking(fd, False)

    def send(
        self, header: dict[str, Any], body: bytes | memoryview = b"", seconds: float | None = None
    ) -> None:
        text = json.dumps(header).encode()
        until = _until(seconds)
        self._put(_HEAD.pack(len(text), len(body)) + text, until)
        self._put(body, until)

    def receive(self, most: int, seconds: float | None = None) -> tuple[dict[str, Any], bytes]:
        """A header and at most `most` bytes."""
        until = _until(seconds)
        header, body = _HEAD.unpack(self._get(_HEAD.size, until))
        if header > _HEADER or body > most:
            raise Ended(f"it announced {header} and {body} bytes")
        try:
            found = json.loads(self._get(header, until))
        except (ValueError, RecursionError) as e:
            raise Ended(f"it sent no JSON: {e}") from e
        if not isinstance(found, dict):
            raise Ended("it sent no object")
        return found, self._get(body, until)

    def _put(self, data: bytes | memoryview, until: float | None) -> None:
        left = memoryview(data)
        while left:
            _wait(self.write, selectors.EVENT_WRITE, until)
            try:
                left = left[os.write(self.write, left) :]
            except BlockingIOError:
                continue
            except OSError as e:
                raise Ended(str(e)) from e

    def _get(self, length: int, until: float | None) -> bytes:
        parts: list[bytes] = []
        while length:
            _wait(self.read, selectors.EVENT_READ, until)
            try:
                part = os.read(self.read, min(length, 1 << 20))
            except BlockingIOError:
                continue
            except OSError as e:
                raise Ended(str(e)) from e
            if not part:
                raise Ended("it closed its end")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait(fd: int, event: int, until: float | None) -> None:
    with selectors.PollSelector() as ready:  # poll needs no descriptor of its own
        ready.register(fd, event)
        left = None if until is None else until - time.monotonic()
        if (left is not None and left <= 0) or not ready.select(left):
            raise Late
