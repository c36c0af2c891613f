"""Writing evidence: sections become a document, the document a page or a JSON file, and a key seals it.

Knows documents, signers and the page's template. Does not know where sections come from.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from motet.atomic import write_atomically
from motet.evidence.document import Document, canonical, document, embedded, json_head, sealed
from motet.evidence.run_sections import Sections
from motet.evidence.signing import CERTIFICATE, LOCAL, EvidenceSigner
from motet.report import html
from motet.runs.versions import versions

TEMPLATE = Path(html.__file__).with_name("evidence.html")
PROVES = {
    LOCAL: "The signature is made with a local key. It proves that this file is as it was signed, and that whoever "
    "signed it holds this key. It does not prove who that is: compare the fingerprint once with its owner, on a "
    "channel that you trust, and demand it from then on (motet evidence check FILE --key FINGERPRINT).",
    CERTIFICATE: "The signature is made with the key of the party that the certificate names, and the federation's "
    "root has signed that certificate. It proves that this party wrote this file, and that it is as it was signed. "
    "Make sure that the root is your federation's: compare its fingerprint once, and demand it from then on (motet "
    "evidence check FILE --key FINGERPRINT).",
}
NOT_PROVEN = (
    "No signature proves that what a party says is true: it proves who said it. The evidence of a server and of its "
    "sites can be held against each other (motet evidence check SERVER_FILE SITE_FILE …)."
)


def made_of(kind: str, sections: Sections, signer: EvidenceSigner, made: str = "") -> Document:
    now = made or datetime.now(UTC).replace(microsecond=0).isoformat()
    return document(kind, now, {"motet": versions()["motet"], "form": form()}, signer.about, sections)


def form() -> str:
    """A digest of what makes a page of a document: the same form gives the same page."""
    files = (TEMPLATE, TEMPLATE.with_name("style.html"), Path(__file__))
    return sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


def page_of(found: Document) -> bytes:
    """The page up to its seal; the same for the same document, whatever the order of its fields."""
    found = json.loads(canonical(found))
    contents = {s["name"]: s["content"] for s in found["sections"]}
    text: str = html.template(TEMPLATE.name).render(
        document=found, parts=contents, data=embedded(found), policy="default-src 'none'; style-src 'unsafe-inline'",
        proves=PROVES.get(found["signer"].get("kind"), ""), not_proven=NOT_PROVEN,
        totals=totals(contents.get("left") or {}),
    )  # fmt: skip
    return text.encode()


def totals(left: dict[str, Any]) -> list[dict[str, Any]]:
    """What left in all, by verb."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in left.get("rows", []):
        key = str(row["verb"]), str(row["learn"])
        one = found.setdefault(
            key, {"verb": key[0], "learn": key[1], "clients": 0, "messages": 0, "up": 0, "down": 0}
        )
        one["clients"] += 1
        for name in ("messages", "up", "down"):
            one[name] += row.get(name) or 0
    return list(found.values())


def write(found: Document, signer: EvidenceSigner, to: Path) -> Path:
    """A page, or the data alone where the name ends in .json; for its owner alone, who decides who may read it."""
    as_json = to.suffix == ".json"
    head = json_head(found) if as_json else page_of(found)
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, sealed(head, found["root"], signer.sign, page=not as_json), private=True)
    return to
