"""What the server of a run received: a line for every reply and every refusal that came from a site.

It is the counterpart of the sites' ledgers. Lines are written as replies come, also of rounds that are given up
later, and each holds the hash of the line before it.
Knows lines and the run's folder. Does not know what replies hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from hashlib import sha256
from json import dumps
from pathlib import Path

from msgspec import DecodeError, Struct, ValidationError, json, to_builtins

from motet.engines.letters import Reply
from motet.text import printable
from motet.wire import WireError

FILE = "received.jsonl"
_SHORT = 64 << 10  # bytes; a refusal is shorter, also one that names files


class ReceivedLine(Struct, frozen=True, omit_defaults=True):
    """One reply of a site."""

    time: str = ""
    site: str = ""
    job: str = ""
    verb: str = ""
    learn: str = ""
    round: int = -1
    ask: int = 0
    bytes: int = 0
    sha256: str = ""
    refusal: str = ""  # what the site said instead of a reply
    previous: str = ""  # sha256 of the line before


class ReceivedReplies:
    """The list of one run, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        content = self.path.read_bytes() if self.path.exists() else b""
        if content and not content.endswith(b"\n"):  # cut off by a crash
            with self.path.open("ab") as file:
                file.write(b"\n")
        lines = [raw for raw in content.split(b"\n") if raw]
        self.last = sha256(lines[-1]).hexdigest() if lines else ""

    def write(
        self,
        came: Mapping[str, bytes],
        job: str,
        verb: str = "",
        learn: str = "",
        round: int = -1,
        ask: int = 0,
    ) -> None:
        """Add lines for replies to one ask; they are on the disk when this returns."""
        now, added = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), b""
        for site, given in sorted(came.items()):
            reply = given if isinstance(given, bytes) else b""  # what is no message counts as an empty one
            mark, said = sha256(reply).hexdigest(), refusal_of(reply)
            line = ReceivedLine(now, site, job, verb, learn, round, ask, len(reply), mark, said, self.last)
            raw = dumps(to_builtins(line)).encode("ascii")
            self.last = sha256(raw).hexdigest()
            added += raw + b"\n"
        if not added:
            return
        opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(opened, added)
            os.fsync(opened)
        finally:
            os.close(opened)


def refusal_of(reply: bytes) -> str:
    """The word of a refusal; "" for a reply, and for bytes that are neither."""
    if len(reply) > _SHORT:
        return ""
    try:
        return Reply.read(reply).refusal
    except WireError:
        return ""


def read_received(folder: Path) -> tuple[list[ReceivedLine], list[str]]:
    """All lines of a run's list, and where its chain is damaged."""
    path = folder / FILE
    content = path.read_bytes() if path.exists() else b""
    lines, damage, last = list[ReceivedLine](), list[str](), ""
    for number, raw in enumerate(content.split(b"\n"), 1):
        if not raw:
            continue
        try:
            line = json.decode(raw, type=ReceivedLine)
            if line.previous != last:
                damage.append(f"line {number} of {FILE} does not follow the line before it")
            lines.append(line)
        except (DecodeError, ValidationError, UnicodeDecodeError):
            damage.append(f"line {number} of {FILE} is no line of it: it was changed, or cut off by a crash")
        last = sha256(raw).hexdigest()
    return lines, [printable(d) for d in damage]
