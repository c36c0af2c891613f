"""Who a site is in a masked sum: it signs with the key of its certificate, and checks others' against the root.

A key of another site counts if its certificate is signed by the federation's root, is valid today, is not revoked,
names that site, and is a site's: the root also signed those of the server and of who starts runs, with which the
server could fill a sum with parties of its own. So the server, which carries all keys, cannot put one of its own in
their place.
Knows certificates. Does not know sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from motet.guard.masks.messages import KeyNote


@dataclass(frozen=True)
class SiteIdentity:
    """How a site signs, what vouches for it, and how it checks others."""

    sign: Callable[[bytes], bytes]
    verify: Callable[[KeyNote, bytes, bytes], bool]
    certificate: bytes = b""


def certified_identity(startup: Path) -> SiteIdentity:
    """The identity of a kit; its files are read when they are first needed, and the list of revoked ones each time."""
    return SiteIdentity(
        lambda data: _sign(startup, data),
        lambda note, data, signature: _verified(startup, note, data, signature),
        (startup / "client.crt").read_bytes() if (startup / "client.crt").is_file() else b"",
    )


def _sign(startup: Path, data: bytes) -> bytes:
    return _key((startup / "client.key").read_bytes()).sign(data, _padding(), hashes.SHA256())


@lru_cache(maxsize=4)
def _key(pem: bytes) -> rsa.RSAPrivateKey:
    from motet.deploy.flare.certificates import read_key

    return read_key(pem)


def _verified(startup: Path, note: KeyNote, data: bytes, signature: bytes) -> bool:
    """Whether the federation's root vouches for the site whose key signed."""
    from motet.deploy.flare import certificates as certs
    from motet.deploy.flare.authority import LIST
    from motet.deploy.flare.kits import FederationError

    try:
        cert = certs.read_certificate(note.certificate)
        root = certs.read_certificate((startup / "rootCA.pem").read_bytes())
        gone = certs.read_list((startup / LIST).read_bytes(), root)
        now = datetime.now(UTC)
        if not certs.signed_by(cert, root) or gone.of(cert.serial_number):
            return False
        if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
            return False
        if certs.common_name(cert.subject) != note.client or not certs.is_site(cert):
            return False
        certs.public_key(cert).verify(signature, data, _padding(), hashes.SHA256())
    except (FederationError, InvalidSignature, OSError, ValueError):
        return False
    return True


def _padding() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA256()), 32)
