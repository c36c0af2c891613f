"""A party's own side of its keys: it makes them, asks for certificates, and accepts what was signed.

The private key is made in the party's folder and never leaves it. The answer holds certificates and the server's
address; everything else of a kit is made here, by the installed motet and FLARE. An answer for a kit that is in use
changes its certificates alone: data, policy, state and the site's state key stay.
Knows a party's folder. Does not know how the authority decides.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cryptography import x509

from motet.atomic import write_atomically
from motet.deploy.flare import certificates as certs
from motet.deploy.flare.authority import LIST, SignedAnswer
from motet.deploy.flare.kits import (
    REQUESTED,
    FederationError,
    Kit,
    check_host,
    check_names,
    empty_kits,
    fill_kit,
    key_places,
    make_private,
    open_kit,
)  # fmt: skip


def make_request(party: str, folder: Path) -> Path:
    """New keys in a folder that is, or becomes, this party's kit; returns the request that goes to the convener."""
    if party != "server":
        check_names([party])
    place = folder / REQUESTED
    if (folder / "motet.json").exists() and (known := open_kit(folder).party) != party:
        raise FederationError(f"{folder} is the kit of {known}, not of {party}\nhint: --to another folder")
    if place.exists():
        raise FederationError(
            f"{place} holds a request already\nhint: send it, or delete the folder to make new keys"
        )
    place.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    requests = b""
    for name in key_places(party):
        key = certs.make_key()
        write_atomically(place / f"{name}.key", certs.key_pem(key), private=True)
        requests += certs.request_pem(key, name)
    write_atomically(place / f"{party}.request", requests, private=True)
    return place / f"{party}.request"


def accept(folder: Path, answer: SignedAnswer) -> Kit:
    """Make a kit of the folder's keys and the signed answer, or put renewed certificates into the kit there."""
    root = certs.read_certificate(answer.root.encode())
    signed = {name: certs.read_certificate(pem.encode()) for name, pem in answer.certificates.items()}
    kit = Kit(folder.expanduser().resolve(), answer.federation, answer.party, answer.host, answer.port)
    if (folder / "motet.json").exists():
        kit = check_known(open_kit(folder), answer, root)
    check_answer(kit, root, signed)
    keys = {name: fitting_key(kit, name, c) for name, c in signed.items()}
    if not (folder / "motet.json").exists():
        sites = [] if kit.is_server else [kit.party]
        with empty_kits(kit.federation, kit.host, kit.port, sites) as made:
            fill_kit(kit, made[kit.party])
    for name, (place, base) in key_places(kit.party).items():
        put_credentials(kit.folder / place, base, keys[name], signed[name], root)
    take_list(kit, answer.revoked.encode())
    shutil.rmtree(kit.folder / REQUESTED, ignore_errors=True)
    make_private(kit.folder)
    return kit


def check_known(kit: Kit, answer: SignedAnswer, root: x509.Certificate) -> Kit:
    """An answer for a kit that is in use must be of the same party, federation and root."""
    mine = certs.read_certificate((kit.startup / "rootCA.pem").read_bytes())
    if (kit.party, kit.federation) != (answer.party, answer.federation) or mine != root:
        raise FederationError(
            f"{kit.folder} is the kit of {kit.party} in {kit.federation}, and the answer is for {answer.party} in "
            f"{answer.federation}, or of another authority of that name\nhint: accept it in a folder of its own"
        )
    return kit


def check_answer(kit: Kit, root: x509.Certificate, signed: dict[str, x509.Certificate]) -> None:
    """What nobody could use is not accepted."""
    check_names([kit.federation])
    check_names([] if kit.is_server else [kit.party])
    check_host(kit.host, [kit.party], kit.port)
    if set(signed) != set(key_places(kit.party)) or not all(
        certs.signed_by(c, root) for c in signed.values()
    ):
        raise FederationError(
            f"the answer does not hold certificates of {kit.party} that its root signed\n"
            "hint: ask the convener for a new answer"
        )
    if not kit.is_server and certs.common_name(signed[kit.party].subject) != kit.party:
        raise FederationError(f"the certificate in the answer does not name {kit.party}")


def fitting_key(kit: Kit, name: str, cert: x509.Certificate) -> bytes:
    """The private key that a certificate was signed for: of the request, or the one in use."""
    place, base = key_places(kit.party)[name]
    for file in (kit.folder / REQUESTED / f"{name}.key", kit.folder / place / f"{base}.key"):
        if file.exists() and certs.read_key(pem := file.read_bytes()).public_key() == cert.public_key():
            return pem
    raise FederationError(
        f"the certificate of {name} is for another key than those in {kit.folder}\n"
        f"hint: accept it where `motet federation request {kit.party}` made the key"
    )


def put_credentials(
    place: Path, base: str, key: bytes, cert: x509.Certificate, root: x509.Certificate
) -> None:
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(place / f"{base}.key", key, private=True)
    write_atomically(place / f"{base}.crt", certs.certificate_pem(cert), private=True)
    write_atomically(place / "rootCA.pem", certs.certificate_pem(root), private=True)


def take_list(kit: Kit, pem: bytes) -> bool:
    """Store a list of revoked certificates, if the kit's root signed it and it is newer than the one here."""
    root = certs.read_certificate((kit.startup / "rootCA.pem").read_bytes())
    given, file = certs.read_list(pem, root), kit.startup / LIST
    if file.exists() and certs.read_list(file.read_bytes(), root).number >= given.number:
        return False
    write_atomically(file, pem, private=True)
    return True
