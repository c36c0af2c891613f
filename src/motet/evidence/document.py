"""The form of evidence: sections chained by hashes, one root that covers them all, and a seal behind the whole file.

A section's hash covers its name, its content and the hash before it. The root covers the last hash and what is said
of the file itself: when it was made, by whom, by which motet. The seal holds the root, a hash of every byte before
the seal, and a signature of both. So a changed byte is found wherever it is, and a changed section is named.
An HTML page and a JSON file hold the same document.
Knows JSON, hashes and bytes. Does not know keys, runs or what sections mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from motet.errors import MotetError

FORMAT = 1
_SCRIPT = b'<script type="application/json" id="evidence">'
_SEAL_HTML, _END_HTML = b"<!-- motet seal: ", b" -->\n"
_START_JSON, _SEAL_JSON, _END_JSON = b'{"evidence": ', b',\n"seal": ', b"}\n"
Document = dict[str, Any]
Seal = dict[str, str]  # root, page, signature


class EvidenceError(MotetError):
    """A file that is no evidence, or not what it says; or a key that cannot be used."""


def canonical(value: Any) -> bytes:
    """The one way in which a value is written. Safe within a page: no tag can end or begin in it.

    >>> canonical({"b": "<i>", "a": [1.5, None]})
    b'{"a":[1.5,null],"b":"\\\\u003ci\\\\u003e"}'
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode()


def digest(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()


def plain(value: Any) -> Any:
    """Content as JSON knows it: what is no number is None, tuples are lists, keys are text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document(
    kind: str,
    made: str,
    writer: Mapping[str, str],
    signer: Mapping[str, Any],
    sections: Sequence[tuple[str, Any]],
) -> Document:
    """Sections (name, content) in one chain."""
    linked, last = [], ""
    for name, content in sections:
        content = plain(content)
        last = digest([last, name, content])
        linked.append({"name": name, "content": content, "hash": last})
    head = {"format": FORMAT, "kind": kind, "made": made, "writer": dict(writer), "signer": dict(signer)}
    return head | {"sections": linked, "root": root_of(head, last)}


def root_of(head: Mapping[str, Any], last: str) -> str:
    return digest([head.get(k) for k in ("format", "kind", "made", "writer", "signer")] + [last])


def broken_links(found: Document) -> list[str]:
    """Where the chain of a document does not hold, by the names of its sections."""
    wrong, last = [], ""
    for section in found["sections"]:
        if digest([last, section["name"], section["content"]]) != section["hash"]:
            wrong.append(f"section {section['name']!r} was changed: its hash does not match")
        last = section["hash"]
    if root_of(found, last) != found["root"]:
        wrong.append("the root does not match: the date, the signer or the order of sections was changed")
    return wrong


def content_of(found: Document, name: str) -> Any:
    """A section's content; {} if there is none."""
    return next((s["content"] for s in found["sections"] if s["name"] == name), {})


# ---- files ----


def signed_bytes(root: str, page: str) -> bytes:
    """What a signature is made of."""
    return f"motet evidence {FORMAT}\n{root}\n{page}\n".encode()


def embedded(found: Document) -> str:
    """A document as it stands in a page."""
    return f"{_SCRIPT.decode()}{canonical(found).decode()}</script>"


def sealed(head: bytes, root: str, sign: Any, *, page: bool) -> bytes:
    """A file: what comes before the seal, and the seal."""
    digest_ = sha256(head).hexdigest()
    seal = canonical({"root": root, "page": digest_, "signature": sign(signed_bytes(root, digest_))})
    return head + (_SEAL_HTML + seal + _END_HTML if page else _SEAL_JSON + seal + _END_JSON)


def json_head(found: Document) -> bytes:
    return _START_JSON + canonical(found)


def opened(content: bytes) -> tuple[Document, Seal, bytes]:
    """The document of a file, its seal, and all bytes before the seal; they are not checked yet."""
    as_json = content.startswith(_START_JSON)
    mark, end = (_SEAL_JSON, _END_JSON) if as_json else (_SEAL_HTML, _END_HTML)
    at = content.rfind(mark)
    if at < 0 or not content.endswith(end):
        raise EvidenceError(
            "this is no evidence, or its end is missing or was changed: it has no seal\n"
            "hint: motet evidence RUN writes evidence"
        )
    head, body = content[:at], content[at + len(mark) : -len(end)]
    start = len(_START_JSON) if as_json else head.find(_SCRIPT) + len(_SCRIPT)
    stop = len(head) if as_json else head.find(b"</script>", start)
    try:
        seal, found = json.loads(body), json.loads(head[start:stop])
        same = canonical(seal) == body and all(
            isinstance(seal[k], str) for k in ("root", "page", "signature")
        )
        sections = [(s["name"], s["content"], s["hash"]) for s in found["sections"]]
        whole = isinstance(found["signer"], dict) and isinstance(found["root"], str) and sections
    except (ValueError, LookupError, TypeError, RecursionError) as e:
        raise EvidenceError(
            f"its data or its seal cannot be read: they were changed ({type(e).__name__})"
        ) from None
    if not same or not whole:
        raise EvidenceError("its data or its seal are not as they were written: they were changed")
    return found, seal, head
