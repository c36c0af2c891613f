"""Downloads over http(s): resumed after a break, and checked by size and checksum.

Knows addresses, sizes and checksums. Does not know what is in a file.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from motet.data.federated import DataError

OnBytes = Callable[[int, int], None]  # (bytes so far, bytes of the whole file; 0: unknown)
_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Remote:
    """A file on a server; the checksums are those of the file as it is sent."""

    file: str  # its name on this machine
    url: str
    size: int = 0  # bytes; 0: unknown
    sha256: str = ""
    md5: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def checksum(self) -> str:
        """Kind and value of the checksum."""
        return f"sha256 {self.sha256}" if self.sha256 else f"md5 {self.md5}" if self.md5 else "no checksum"


def download(remote: Remote, to: Path, watch: OnBytes | None = None) -> Path:
    """The file in the folder `to`, which has the data set's name.

    An incomplete file is called `.part`. It stays when a connection breaks, and the next call resumes it. If the
    checksum is then wrong, because the first part was of another version, the download starts again, once.
    """
    file, part = to / remote.file, to / f"{remote.file}.part"
    if urlsplit(remote.url).scheme not in ("http", "https"):
        raise DataError(f"{remote.url} is not fetched; expected an address with http:// or https://")
    if file.is_file() and not mismatch(remote, file):
        return file
    to.mkdir(parents=True, exist_ok=True)
    resumed = _transfer(remote, part, watch)
    wrong = mismatch(remote, part)
    if wrong and resumed:
        part.unlink()
        _transfer(remote, part, watch)
        wrong = mismatch(remote, part)
    if wrong:
        part.unlink()
        raise DataError(
            f"{remote.file} from {remote.url} is not the file it should be: {wrong}.\n"
            f"hint: try again; if it stays so, {_other_way(remote, to)}"
        )
    os.replace(part, file)
    return file


def mismatch(remote: Remote, file: Path) -> str:
    """How a file differs from the one it should be; "" if it does not."""
    size = file.stat().st_size
    if remote.size and size != remote.size:
        return f"it has {size} bytes; expected {remote.size}"
    for kind, expected in (("sha256", remote.sha256), ("md5", remote.md5)):
        if expected and (got := checksum(file, kind)) != expected:
            return f"its {kind} is {got}; expected {expected}"
    return ""


def checksum(file: Path, kind: str) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _transfer(remote: Remote, part: Path, watch: OnBytes | None) -> bool:
    """Download into `part`; returns whether it was resumed."""
    have = part.stat().st_size if part.is_file() else 0
    if remote.size and have >= remote.size:
        if have == remote.size:
            return True
        have = 0
    try:
        with _ask(remote, have) as answer:
            have, total = _offered(answer, have)
            _copy(answer, part, have, total, watch)
    except HTTPError as e:
        if e.code == 416 and have:  # the file on the server is shorter than our part: another version
            part.unlink()
            return _transfer(remote, part, watch)
        raise _lost(remote, part, f"the server answers {e.code} {e.reason}") from e
    except (OSError, http.client.HTTPException) as e:
        raise _lost(remote, part, str(getattr(e, "reason", e)) or type(e).__name__) from e
    return have > 0


def _ask(remote: Remote, have: int) -> http.client.HTTPResponse:
    """Open the address; redirects to anything but http(s) are refused."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    headers = {"User-Agent": "motet", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(remote.url, headers=headers)
    answer: http.client.HTTPResponse = opener.open(request, timeout=_TIMEOUT)
    return answer


def _offered(answer: http.client.HTTPResponse, have: int) -> tuple[int, int]:
    """The first byte of the answer (0 if the server ignores Range), and the size of the whole file."""
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            raise OSError(f"the server offers {answer.headers.get('Content-Range')}; asked for bytes {have}-")
        return have, 0 if found[2] == "*" else int(found[2])
    return 0, int(answer.headers.get("Content-Length") or 0)


def _copy(answer: http.client.HTTPResponse, part: Path, have: int, total: int, watch: OnBytes | None) -> None:
    with part.open("r+b" if have else "wb") as f:
        f.seek(have)
        f.truncate()
        while chunk := answer.read(_CHUNK):
            f.write(chunk)
            have += len(chunk)
            if watch:
                watch(have, total)
        f.flush()
        os.fsync(f.fileno())
    if have < total:
        raise OSError(f"the connection broke off after {have} of {total} bytes")


def _lost(remote: Remote, part: Path, why: str) -> DataError:
    have = part.stat().st_size if part.is_file() else 0
    kept = f"; {have} bytes are kept, and the same command goes on from there" if have else ""
    return DataError(
        f"{remote.url} cannot be fetched: {why}{kept}.\n"
        f"hint: without a network, {_other_way(remote, part.parent)}"
    )


def _other_way(remote: Remote, to: Path) -> str:
    return (
        f"get {remote.file} ({remote.checksum}) yourself and say "
        f"`motet data fetch {to.name} --from FOLDER`, or let MOTET_DATA name the folder above it"
    )
