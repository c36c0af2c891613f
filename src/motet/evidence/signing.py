"""Who signs evidence: the party of a federation with its certificate, else a key of this user's own.

A local key is made when it is first needed and stays in the user's folder of settings, for its owner alone. Its
signature proves that two files are of the same key and that nothing in them changed. It does not prove whose key it
is: whoever checks compares the fingerprint once, on a channel that he trusts. A certificate names the party, and
the federation's root vouches for it.
Knows keys and certificates. Does not know what is signed.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from motet.atomic import write_atomically
from motet.evidence.document import EvidenceError

KEY = "evidence.key"
LOCAL, CERTIFICATE = "local key", "certificate"
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), 32)


@dataclass(frozen=True)
class EvidenceSigner:
    """What evidence says of its signer, and how it is signed."""

    about: dict[str, str]
    sign: Callable[[bytes], str]


def settings_folder() -> Path:
    """Where this user's settings are; MOTET_CONFIG names another place."""
    from platformdirs import user_config_path

    own = os.environ.get("MOTET_CONFIG")
    return Path(own) if own else user_config_path("motet")


def local_signer(folder: Path | None = None) -> EvidenceSigner:
    """The signer with this user's own key, which is made if there is none."""
    file = (folder or settings_folder()) / KEY
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kind = serialization.PrivateFormat.PKCS8
        pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, kind, serialization.NoEncryption()
        )
        write_atomically(file, pem, private=True)
    key = read_private(file)
    public = key.public_key()
    about = {"kind": LOCAL, "party": "", "federation": "", "key": public_pem(public), "root_fingerprint": ""}
    about["fingerprint"] = fingerprint(public)
    return EvidenceSigner(about, lambda data: signature(key, data))


def certified_signer(
    key_file: Path, certificate: Path, root: Path, party: str, federation: str
) -> EvidenceSigner:
    """The signer with a party's key; its certificate and the root's go into the file."""
    key, cert, of_root = (
        read_private(key_file),
        read_cert(certificate.read_bytes()),
        read_cert(root.read_bytes()),
    )
    if public_pem(key.public_key()) != public_pem(cert.public_key()):
        raise EvidenceError(f"the key {key_file} is not the one of the certificate {certificate}")
    about = {
        "kind": CERTIFICATE, "party": party, "federation": federation,
        "certificate": cert.public_bytes(serialization.Encoding.PEM).decode(),
        "root": of_root.public_bytes(serialization.Encoding.PEM).decode(),
        "fingerprint": fingerprint(cert.public_key()), "root_fingerprint": fingerprint(of_root.public_key()),
    }  # fmt: skip
    return EvidenceSigner(about, lambda data: signature(key, data))


def read_private(file: Path) -> Any:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as e:
        raise EvidenceError(
            f"the key {file} cannot be read: {e}\nhint: put it back from a copy; if it is lost, move it away, and "
            "the next evidence is signed with a new key, which nobody knows yet"
        ) from e


def read_cert(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as e:
        raise EvidenceError(f"a certificate cannot be read: {e}") from e


def public_pem(key: Any) -> str:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return str(key.public_bytes(serialization.Encoding.PEM, kind).decode())


def fingerprint(key: Any) -> str:
    """A short form of a public key that two people can compare on the telephone."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    found = sha256(key.public_bytes(serialization.Encoding.DER, kind)).hexdigest()[:32]
    return " ".join(found[i : i + 4] for i in range(0, 32, 4))


def signature(key: Any, data: bytes) -> str:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        made = key.sign(data)
    elif isinstance(key, rsa.RSAPrivateKey):
        made = key.sign(data, _PSS, hashes.SHA256())
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = key.sign(data, ec.ECDSA(hashes.SHA256()))
    else:
        raise EvidenceError(f"a key of the kind {type(key).__name__} cannot sign evidence")
    return base64.b64encode(made).decode()


# ---- checking ----


def check_signature(about: Mapping[str, Any], data: bytes, signed: str, made: str) -> None:
    """Raises what is wrong with a signature, or with the certificate that it is made with."""
    try:
        given = base64.b64decode(signed, validate=True)
    except (binascii.Error, ValueError):
        given = b""
    if base64.b64encode(given).decode() != signed:
        raise EvidenceError("the signature was changed")
    key = signing_key(about, made)
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(given, data)
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(given, data, _PSS, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(given, data, ec.ECDSA(hashes.SHA256()))
        else:
            raise EvidenceError(f"a key of the kind {type(key).__name__} cannot sign evidence")
    except InvalidSignature:
        raise EvidenceError(
            "the signature is not that of the key that the file names: the file was changed, or signed by another"
        ) from None
    if fingerprint(key) != about.get("fingerprint"):
        raise EvidenceError("the fingerprint in the file is not that of its key")


def signing_key(about: Mapping[str, Any], made: str) -> Any:
    """The public key that a file was signed with; of a certificate, the root must have signed it."""
    try:
        if about.get("kind") == LOCAL:
            return serialization.load_pem_public_key(str(about["key"]).encode())
        cert, root = (read_cert(str(about[k]).encode()) for k in ("certificate", "root"))
        when = datetime.fromisoformat(made)
    except (LookupError, ValueError, TypeError) as e:
        raise EvidenceError(f"the file does not say who signed it: {e}") from None
    try:
        cert.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise EvidenceError("the root in the file did not sign the signer's certificate") from None
    if fingerprint(root.public_key()) != about.get("root_fingerprint"):
        raise EvidenceError("the fingerprint of the root in the file is not that of its key")
    if not cert.not_valid_before_utc <= when <= cert.not_valid_after_utc:
        raise EvidenceError(
            f"the signer's certificate was not valid on {made}, when the file says it was made"
        )
    return cert.public_key()


def certified_name(about: Mapping[str, Any]) -> str:
    """Whom the certificate names; "" for a local key."""
    return "" if about.get("kind") == LOCAL else _named(about, x509.oid.NameOID.COMMON_NAME)


def is_servers(about: Mapping[str, Any]) -> bool:
    """Whether the certificate is the one that a federation's server has: its organisation is `server`, where a
    site's is the site's own name, and it has no role, as the owner's has, who starts runs."""
    if about.get("kind") == LOCAL:
        return False
    organisation, role = (
        _named(about, part)
        for part in (x509.oid.NameOID.ORGANIZATION_NAME, x509.oid.NameOID.UNSTRUCTURED_NAME)
    )
    return organisation == "server" and not role


def _named(about: Mapping[str, Any], part: x509.ObjectIdentifier) -> str:
    found = read_cert(str(about["certificate"]).encode()).subject.get_attributes_for_oid(part)
    return str(found[0].value) if found else ""
