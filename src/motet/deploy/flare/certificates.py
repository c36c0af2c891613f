"""Keys, signing requests, certificates, and the signed list of revoked certificates.

FLARE signs with RSA and reads three things of a certificate: its common name, its organisation and, of whoever
starts runs, a role. Its own function makes certificates of that form. A list (CRL) has an entry for each revoked
certificate, with its serial number, the day, and whose it was; lists are numbered, and the larger number is newer.
Knows X.509. Does not know folders, nor who may sign what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from motet.deploy.flare.kits import FederationError
from motet.errors import need

SERVERS = "server"  # organisation of the server and of who starts runs
BITS, ROOT_BITS = (
    2048,
    3072,
)  # of RSA keys: of a party's, which lives for years, and of the root, which outlives it
_SKEW = timedelta(hours=1)  # clocks of parties may differ
_REQUEST = re.compile(rb"-----BEGIN CERTIFICATE REQUEST-----.*?-----END CERTIFICATE REQUEST-----", re.DOTALL)
_LARGEST = 8192  # bits of a key in a request; checking larger ones would take long

_LONGEST_LIST = 1 << 20  # bytes; some ten thousand revoked certificates


@dataclass(frozen=True)
class Subject:
    """Whom a certificate names."""

    name: str
    org: str
    role: str = ""
    host: str = ""  # of the server: by which name it is reached


@dataclass(frozen=True)
class Signer:
    """A root certificate and its key."""

    root: x509.Certificate
    key: rsa.RSAPrivateKey


@dataclass(frozen=True)
class Revocation:
    serial: int
    party: str
    when: datetime


@dataclass(frozen=True)
class RevokedList:
    """What the authority has revoked so far, as its signed list says."""

    number: int
    entries: tuple[Revocation, ...]

    def of(self, serial: int) -> Revocation | None:
        return next((e for e in self.entries if e.serial == serial), None)


# ---- keys and requests ----


def make_key(bits: int = BITS) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def key_pem(key: rsa.RSAPrivateKey) -> bytes:
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def read_key(pem: bytes) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise FederationError("FLARE needs an RSA key, and this is another kind")
    return key


def request_pem(key: rsa.RSAPrivateKey, name: str) -> bytes:
    """A signing request: the public key and a name, signed with the private key, which stays where it is."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def read_requests(pem: bytes) -> dict[str, rsa.RSAPublicKey]:
    """The names and public keys of all requests in a file; of a request nothing else is believed."""
    found = {}
    for block in _REQUEST.findall(pem):
        try:
            request = x509.load_pem_x509_csr(block)
            key, name = request.public_key(), common_name(request.subject)
            signed = request.is_signature_valid
        except ValueError as e:
            raise FederationError(f"the signing request cannot be read: {e}") from e
        if not isinstance(key, rsa.RSAPublicKey) or not BITS <= key.key_size <= _LARGEST or not signed:
            raise FederationError(
                f"the request of {name!r} has no RSA key of {BITS} to {_LARGEST} bits, or is not signed with it\n"
                "hint: `motet federation request` makes requests"
            )
        found[name] = key
    if not found:
        raise FederationError("no signing request is in the file\nhint: `motet federation request` makes one")
    return found


def fingerprint(key: rsa.RSAPublicKey) -> str:
    """A short form of a public key that two people can compare on the telephone."""
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    digest = sha256(key.public_bytes(serialization.Encoding.DER, kind)).hexdigest()[:32]
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def public_key(cert: x509.Certificate) -> rsa.RSAPublicKey:
    key = cert.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise FederationError("FLARE needs certificates with an RSA key, and this has another kind")
    return key


def common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def is_site(cert: x509.Certificate) -> bool:
    """Whether a certificate is a site's: its organisation is its own name, and it has no role. The server's and its
    owner's have the organisation `server`, which no site may be called."""
    found = cert.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    org = str(found[0].value) if found else ""
    role = cert.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
    return not role and org == common_name(cert.subject) != SERVERS


# ---- certificates ----


def make_root(name: str, days: int, begins: datetime | None = None) -> Signer:
    """A root that signs itself."""
    key = make_key(ROOT_BITS)
    first, last = life(days, begins)
    return Signer(_made(Subject(name, ""), name, key, key.public_key(), first, last, ca=True), key)


def issue(
    signer: Signer, subject: Subject, key: rsa.RSAPublicKey, days: int, begins: datetime | None = None
) -> x509.Certificate:
    """A certificate for a public key; none outlives the root."""
    first, last = life(days, begins)
    last = min(last, signer.root.not_valid_after_utc)
    return _made(subject, common_name(signer.root.subject), signer.key, key, first, last)


def life(days: int, begins: datetime | None) -> tuple[datetime, datetime]:
    now = begins or datetime.now(UTC)
    return now - _SKEW, now + timedelta(days=days)


def _made(
    subject: Subject, issuer: str, signing: rsa.RSAPrivateKey, key: rsa.RSAPublicKey,
    first: datetime, last: datetime, ca: bool = False,
) -> x509.Certificate:  # fmt: skip
    need("a certificate of a federation", "flare", "nvflare")
    from nvflare.lighter.utils import Identity, generate_cert

    who = Identity(subject.name, subject.org or None, subject.role or None)
    found: x509.Certificate = generate_cert(
        who, Identity(issuer), signing, key, ca=ca, server_default_host=subject.host or None,
        not_valid_before=first, not_valid_after=last,
    )  # fmt: skip
    return found


def certificate_pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def read_certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as e:
        raise FederationError(f"a certificate cannot be read: {e}") from e


def signed_by(cert: x509.Certificate, root: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


# ---- revoked certificates ----


def list_pem(signer: Signer, entries: tuple[Revocation, ...], number: int) -> bytes:
    """The list, signed; it is good until a newer one comes. OpenSSL takes the newest of several by whole seconds, so a
    list of the same second has a later one; and a day early, so that no clock finds it too new."""
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(signer.root.subject)
        .last_update(datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=number))
        .next_update(signer.root.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for entry in entries:
        party = x509.UnrecognizedExtension(NameOID.COMMON_NAME, _utf8(entry.party))
        revoked = x509.RevokedCertificateBuilder().serial_number(entry.serial).revocation_date(entry.when)
        made = made.add_revoked_certificate(revoked.add_extension(party, critical=False).build())
    return made.sign(signer.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_list(pem: bytes, root: x509.Certificate) -> RevokedList:
    """The list, if this root signed it."""
    if len(pem) > _LONGEST_LIST:
        raise FederationError(
            f"the list of revoked certificates has {len(pem)} bytes; at most {_LONGEST_LIST} are read"
        )
    try:
        found = x509.load_pem_x509_crl(pem)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except (ValueError, x509.ExtensionNotFound) as e:
        raise FederationError(f"the list of revoked certificates cannot be read: {e}") from e
    if not found.is_signature_valid(root.public_key()):  # type: ignore[arg-type]
        raise FederationError("the list of revoked certificates was signed by another authority")
    return RevokedList(number, tuple(_entry(e) for e in found))


def _entry(found: x509.RevokedCertificate) -> Revocation:
    held = [e.value for e in found.extensions if e.oid == NameOID.COMMON_NAME]
    party = held[0].value[2:].decode() if held and isinstance(held[0], x509.UnrecognizedExtension) else ""
    return Revocation(found.serial_number, party, found.revocation_date_utc)


def _utf8(text: str) -> bytes:
    """As DER; parties' names are shorter than 128 bytes."""
    return bytes([0x0C, len(text.encode())]) + text.encode()
