"""Holding the evidence of a server against that of its sites: what one says it received, the other must have sent.

Replies are matched by what was asked and by the hash of their bytes. A reply that was sent twice because the first
was lost counts once. The recipe that the server ran must be the one of the site's contract.
Knows documents. Does not know ledgers, keys or folders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from motet.evidence.check_file import SERVER, SITE, Checked
from motet.evidence.document import Document, EvidenceError, content_of

_SHOWN = 5
Reply = tuple[str, str, str, int, int, str]  # job, verb, learn, round, ask, sha256


def disagreements(files: Sequence[Checked]) -> tuple[list[str], list[str]]:
    """What the server's evidence and that of its sites do not agree on, and what they agree on, in sentences."""
    documents = [f.document for f in files if f.document is not None]
    servers = [d for d in documents if d["kind"] == SERVER]
    sites = [d for d in documents if d["kind"] == SITE]
    if len(servers) != 1 or not sites or len(servers) + len(sites) < len(documents):
        kinds = ", ".join(f"{f.path.name}: {f.document['kind']}" for f in files if f.document)
        raise EvidenceError(
            f"one server's evidence is held against that of sites, and these are {kinds}\n"
            "hint: motet evidence check SERVER_FILE SITE_FILE …"
        )
    wrong, fine = list[str](), list[str]()
    for site in sites:
        try:
            found, said = between(servers[0], site)
        except (AttributeError, LookupError, TypeError, ValueError) as e:
            raise EvidenceError(f"lists of replies cannot be read: motet did not write them ({e})") from None
        wrong += found
        fine += said if not found else []
    roots = {str(d["signer"].get("root_fingerprint")) for d in documents}
    return [*(["their certificates have different roots"] if len(roots) > 1 else []), *wrong], fine


def between(server: Document, site: Document) -> tuple[list[str], list[str]]:
    """The same for one site."""
    name = str(site["signer"].get("party", ""))
    one, two = content_of(server, "run"), content_of(site, "run")
    if one.get("name") != two.get("name"):
        return [
            f"{name}: its evidence is of run {two.get('name')}, and the server's of run {one.get('name')}"
        ], []
    wrong = []
    if one.get("recipe hash") != two.get("recipe hash"):
        wrong.append(f"{name}: its contract is for another recipe than the one that the server ran")
    received = replies(r for r in content_of(server, "left").get("replies", []) if r["site"] == name)
    left = replies(content_of(site, "left").get("replies", []))
    wrong += unmatched(
        received.keys() - left.keys(), f"{name}: the server received", "which its ledger does not have"
    )
    wrong += unmatched(
        left.keys() - received.keys(),
        f"{name}: its ledger has",
        "which the server does not list: lost, or left out",
    )
    sizes = [key for key in received.keys() & left.keys() if received[key] != left[key]]
    wrong += unmatched(sizes, f"{name}:", "of which both give different sizes")
    total = sum(received.values())
    return wrong, [
        f"{name}: {len(received):,} replies with {total:,} bytes, the same at the server and at the site"
    ]


def replies(rows: Iterable[Mapping[str, Any]]) -> dict[Reply, int]:
    """Bytes of each reply; the same reply once."""
    return {
        (r["job"], r["verb"], r["learn"], int(r["round"]), int(r["ask"]), r["sha256"]): int(r["bytes"])
        for r in rows
    }


def unmatched(keys: Iterable[Reply], who: str, what: str) -> list[str]:
    """A line for each thing that was asked, with the first rounds."""
    by_ask: dict[tuple[str, str], list[Reply]] = {}
    for key in sorted(keys):
        by_ask.setdefault((key[1] or key[0], key[2]), []).append(key)
    lines = []
    for (asked, learn), some in by_ask.items():
        rounds = Counter(k[3] for k in some)
        shown = ", ".join(str(r + 1) for r in sorted(rounds)[:_SHOWN]) + (
            ", …" if len(rounds) > _SHOWN else ""
        )
        how = f" ({learn})" if learn else ""
        lines.append(f"{who} {len(some)} replies to {asked}{how}, round {shown}, {what}")
    return lines
