"""Checking evidence: the seal, the chain, the signature, and with a folder every file's bytes.

Everything that is wrong is named. A sound file says who signed it; whether that is the right one is for whoever
checks to say (`--key`). Knows documents, signatures and folders. Does not know how evidence is made, but for the
page, which must be what its data give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from motet.deploy.site.ledger import hashes_of_lines
from motet.evidence.document import (
    Document,
    EvidenceError,
    broken_links,
    content_of,
    opened,
    signed_bytes,
)
from motet.evidence.run_sections import LOGS, file_record, run_files
from motet.evidence.signing import LOCAL, certified_name, check_signature, is_servers
from motet.evidence.write import form, page_of
from motet.text import printable

SERVER, SITE = "server of a federation", "site of a federation"


@dataclass
class Checked:
    """What was found out about one file of evidence."""

    path: Path
    document: Document | None = None
    wrong: list[str] = field(default_factory=list)  # nothing: the file is sound
    notes: list[str] = field(default_factory=list)

    @property
    def about(self) -> Mapping[str, Any]:
        signer: Mapping[str, Any] = self.document["signer"] if self.document else {}
        return signer

    @property
    def party(self) -> str:
        return str(self.about.get("party", ""))


def check_file(path: Path, key: str = "") -> Checked:
    """Check a file by itself; `key` is a fingerprint that the signer's key or its root must have."""
    try:
        content = path.read_bytes()
    except OSError as e:
        raise EvidenceError(f"cannot read {path}: {e.strerror}") from e
    found = Checked(path)
    try:
        document, seal, head = opened(content)
        found.document = document
        found.wrong += broken_links(document)
    except EvidenceError as e:
        found.wrong.append(str(e).split("\n")[0])
        return found
    except (LookupError, TypeError, AttributeError, ValueError) as e:
        found.wrong.append(f"its data are not those of evidence: {type(e).__name__}")
        return found
    if sha256(head).hexdigest() != seal["page"]:
        found.wrong.append("bytes of the file were changed: they are not those that were sealed")
    if seal["root"] != document["root"]:
        found.wrong.append("the seal is that of another document")
    try:
        check_signature(
            document["signer"], signed_bytes(seal["root"], seal["page"]), seal["signature"], document["made"]
        )
        check_party(document["signer"], str(document["kind"]))
    except EvidenceError as e:
        found.wrong.append(str(e))
    if not found.wrong:
        check_page(found, content, head)
        check_key(found, key)
    return found


def check_party(about: Mapping[str, Any], kind: str) -> None:
    """The party that a file names must be the one of its certificate; a server's is named by its host, and known
    by its organisation. Only the server speaks as the server, and a local key for no party."""
    name, party, local = certified_name(about), about.get("party"), about.get("kind") == LOCAL
    if local and (party or kind in (SERVER, SITE)):
        raise EvidenceError(f"the file is that of {party or 'a ' + kind!r}, and no certificate says so")
    if party == "server" and not is_servers(about):
        raise EvidenceError(
            f"the file says that the server wrote it, and the certificate is that of {name!r}"
        )
    if not local and party != "server" and (not name or name != party):
        raise EvidenceError(f"the file says that {party!r} wrote it, and the certificate is that of {name!r}")
    if not local and (kind == SERVER) != (party == "server"):
        raise EvidenceError(f"{party!r} signed it, and it is the evidence of a {kind}")


def check_page(found: Checked, content: bytes, head: bytes) -> None:
    """A page must be what its own data give, as far as this motet can tell."""
    document = found.document
    if document is None or content.startswith(b"{"):
        return
    if document["writer"].get("form") != form():
        found.notes.append(
            "the page was made by another version of motet: whether its text is that of its data is not checked"
        )
    elif not says_its_data(document, head):
        found.wrong.append("the page does not say what its data say: its signer changed its text")


def says_its_data(document: Document, head: bytes) -> bool:
    try:
        return page_of(document) == head
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # data that motet did not write can be anything
        return False


def check_key(found: Checked, key: str) -> None:
    wanted = "".join(key.split()).lower()
    there = ["".join(str(found.about.get(k, "")).split()) for k in ("fingerprint", "root_fingerprint")]
    if wanted and (len(wanted) < 32 or wanted not in there):
        found.wrong.append(
            f"it was signed with the key {found.about.get('fingerprint')}, and {key} was demanded"
            if len(wanted) >= 32
            else f"{key!r} is no whole fingerprint; expected 32 hexadecimal digits"
        )


# ---- against a folder ----


def check_folder(found: Checked, folder: Path) -> None:
    """Hold every file of a run, or of a site's kit, against the hashes in the evidence."""
    if found.document is None:
        return
    try:
        known = {str(k): str(v["sha256"]) for k, v in content_of(found.document, "files").items()}
        if found.document["kind"] == SITE:
            check_ledger(found, folder)
    except (AttributeError, LookupError, TypeError, ValueError):
        found.wrong.append("its lists of files and lines cannot be read: motet did not write them")
        return
    found.wrong += list(changed_since(folder, known))
    if found.document["kind"] == SITE:
        return
    new = sorted({p.relative_to(folder).as_posix() for p in run_files(folder)} - known.keys())
    logs = [name for name in new if name.endswith(LOGS)]
    found.wrong += [f"{name}: changes the database beside it, and came later" for name in logs]
    new = [name for name in new if name not in logs]
    if new:
        more = f" and {len(new) - 5} more" if len(new) > 5 else ""
        found.notes.append(f"files that came later: {', '.join(new[:5])}{more}")


def changed_since(folder: Path, known: Mapping[str, str]) -> Iterator[str]:
    """Files that are not as the evidence has them."""
    for name, checksum in known.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{name}: is no file of {folder}"
        elif not path.is_file():
            yield f"{name}: is missing in {folder}"
        elif file_record(path)["sha256"] != checksum:
            yield f"{name}: is damaged, or was changed since"


def check_ledger(found: Checked, kit: Path) -> None:
    """The ledger may have grown; what it had must still be there."""
    ledger = content_of(found.document or {"sections": []}, "left").get("ledger", {})
    lines, head = int(ledger.get("lines", 0)), str(ledger.get("head", ""))
    there = hashes_of_lines(kit / "kept")
    if lines and (len(there) < lines or there[lines - 1] != head):
        found.wrong.append(
            f"the ledger of {kit} is not the one of the evidence: lines were changed or left out"
        )


# ---- for people ----


def checked_text(found: Checked) -> str:
    """What was found out, with the signer; all that is wrong first. What the file says is only text here."""
    lines = [f"{found.path}: {'NOT SOUND' if found.wrong else 'sound'}"]
    lines += [f"  wrong: {line}" for line in found.wrong] + [f"  note: {line}" for line in found.notes]
    about = found.about
    if about and found.document and not found.wrong:
        who = (
            f"{about['party']} of {about['federation']}, by certificate"
            if about.get("party")
            else "a local key"
        )
        lines += [f"  signed by {who}, {found.document['made']}", f"  fingerprint {about.get('fingerprint')}"]
        if about.get("root_fingerprint"):
            lines.append(f"  its root    {about['root_fingerprint']}")
    return "\n".join(printable(line, 600) for line in lines)
