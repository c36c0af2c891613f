"""Are a party's certificates good, and does the server take them? Said in words, before FLARE is started.

Checked are the kit's own certificates and, by a TLS handshake with the server's address, the server's: signed by the
kit's root, valid today, not revoked. FLARE would try again for ever instead, without a word.
Knows certificates and sockets. Does not import FLARE.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version as installed
from pathlib import Path

import msgspec
from cryptography import x509
from msgspec import Struct

from motet.atomic import write_atomically
from motet.deploy.flare import certificates as certs
from motet.deploy.flare.authority import LIST
from motet.deploy.flare.certificates import RevokedList
from motet.deploy.flare.key_requests import take_list
from motet.deploy.flare.kits import FederationError, Kit, key_places

log = logging.getLogger("motet.site")
SOON = timedelta(days=30)  # before the end of a certificate, from when on people are warned
_SECONDS = 3.0  # for a handshake with the server
_NO_REASON = "it gives no reason"
_GLITCH = 20.0  # seconds that the network may fail at the start of a job
_PEERS = "peers.json"  # in the server's kit: certificates that were last seen
_ALERTS = {  # OpenSSL's words for what the other side said
    "CERTIFICATE_REVOKED": "it was revoked",
    "CERTIFICATE_EXPIRED": "it expired, by the server's clock",
    "UNKNOWN_CA": "it is of another federation",
}


class Unreachable(FederationError):
    """The server cannot be reached, for now."""


class Peer(Struct, frozen=True):
    """The certificate that a site showed the server last."""

    serial: str  # hexadecimal
    ends: str  # ISO date and time


# ---- a kit's own ----


def check_kit(kit: Kit, now: datetime | None = None) -> list[str]:
    """Raises what is wrong with a kit's certificates; returns warnings of those that end soon."""
    root, gone = root_of(kit), list_of(kit)
    said = check_certificate(root, f"the root of {kit.federation}", root, gone, now)
    for name, (place, base) in key_places(kit.party).items():
        cert = certs.read_certificate((kit.folder / place / f"{base}.crt").read_bytes())
        said += check_certificate(cert, name, root, gone, now, _renewal(kit))
        if (
            certs.read_key((kit.folder / place / f"{base}.key").read_bytes()).public_key()
            != cert.public_key()
        ):
            raise FederationError(
                f"the key of {name} in {kit.folder / place} is not the one of its certificate\n"
                "hint: put back the key that the certificate was requested with"
            )
    return said


def check_certificate(
    cert: x509.Certificate, who: str, root: x509.Certificate, gone: RevokedList,
    now: datetime | None = None, hint: str = "",
) -> list[str]:  # fmt: skip
    """Raises why a certificate is not good today; returns a warning if it ends soon."""
    now, hint = now or datetime.now(UTC), f"\nhint: {hint}" if hint else ""
    first, last = cert.not_valid_before_utc, cert.not_valid_after_utc
    name = who if who.startswith("the ") else f"the certificate of {who}"
    if not certs.signed_by(cert, root):
        raise FederationError(
            f"{name} is of another federation: the root of this kit did not sign it\n"
            "hint: kits of one federation have one authority; one that was created anew signs all kits anew"
        )
    if found := gone.of(cert.serial_number):
        raise FederationError(f"{name} was revoked on {found.when:%Y-%m-%d}\nhint: ask the convener")
    if now > last:
        raise FederationError(f"{name} expired on {last:%Y-%m-%d}{hint}")
    if now < first:
        raise FederationError(
            f"{name} is not valid before {first:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}\nhint: set the clock"
        )
    if last - now < SOON:
        return [f"warning: {name} ends on {last:%Y-%m-%d}, in {(last - now).days} days{hint}"]
    return []


def root_of(kit: Kit) -> x509.Certificate:
    return certs.read_certificate((kit.startup / "rootCA.pem").read_bytes())


def list_of(kit: Kit) -> RevokedList:
    """What is revoked, as far as this kit was told."""
    file = kit.startup / LIST
    if not file.is_file():
        raise FederationError(
            f"{file} is missing: the list of revoked certificates\n"
            f"hint: motet federation accept {kit.folder} {LIST}, with the convener's list"
        )
    return certs.read_list(file.read_bytes(), root_of(kit))


def _renewal(kit: Kit) -> str:
    return f"the convener's `motet federation renew FEDERATION {kit.party}` makes a new one"


# ---- the server's ----


def check_server(kit: Kit, now: datetime | None = None) -> list[str]:
    """Raises why this party and the server do not get together; returns a warning if its certificate ends soon."""
    host, port = address(kit)
    who = f"the server at {host}:{port}"
    try:
        shown, refusal = shake_hands(kit, host, port)
    except OSError as e:
        raise Unreachable(f"{who} does not answer: {e}") from e
    cert = x509.load_der_x509_certificate(shown)
    said = check_certificate(cert, f"the certificate of {who}", root_of(kit), list_of(kit), now)
    if certs.common_name(cert.subject) != kit.host:
        raise FederationError(
            f"{who} shows the certificate of {certs.common_name(cert.subject)!r}; expected that of {kit.host!r}\n"
            "hint: ask the convener for the server's address"
        )
    if refusal:
        mine = list(key_places(kit.party))[-1]
        raise FederationError(f"{who} refuses the certificate of {mine}: {refusal}\nhint: ask the convener")
    return said


def address(kit: Kit) -> tuple[str, int]:
    """Where FLARE looks for the server."""
    file = kit.startup / "fed_client.json"
    if kit.is_server or not file.exists():
        return kit.host, kit.port
    host, _, port = json.loads(file.read_text())["servers"][0]["service"]["target"].rpartition(":")
    return host, int(port)


def shake_hands(kit: Kit, host: str, port: int) -> tuple[bytes, str]:
    """The certificate that the server shows, and why it does not take ours; "" if it does.

    Nothing is verified here, and nothing said that matters: the caller looks at the certificate.
    """
    place, base = list(key_places(kit.party).values())[-1]  # at the server, the owner's
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(kit.folder / place / f"{base}.crt", kit.folder / place / f"{base}.key")
    shown, refusal = ask_server(context, host, port)
    if refusal == _NO_REASON:  # what we sent may have crossed it
        refusal = ask_server(context, host, port, quiet=True)[1]
    return shown, refusal


def ask_server(context: ssl.SSLContext, host: str, port: int, quiet: bool = False) -> tuple[bytes, str]:
    until = time.monotonic() + _SECONDS
    with socket.create_connection((host, port), _SECONDS / 2) as plain:
        plain.settimeout(max(until - time.monotonic(), 0.1))
        with context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True) or b"", refusal_of(secure, quiet)


def refusal_of(secure: ssl.SSLSocket, quiet: bool) -> str:
    """Ask something, or be quiet: in TLS 1.3 the server's verdict comes after the handshake, and is lost where
    something arrives at a connection that the server has closed."""
    try:
        if not quiet:
            secure.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return "" if secure.recv(1) else _NO_REASON
    except ssl.SSLError as e:
        word = str(e.reason or e)
        return next((text for alert, text in _ALERTS.items() if alert in word), word)
    except ConnectionError:
        return _NO_REASON
    except TimeoutError:
        if not quiet:
            raise
        return _NO_REASON


# ---- at the start of a job ----


def objection_to_job(kit: Kit, version: str, revoked: str) -> str:
    """Why a site takes no part in a job, in a few words for the server; "" if it does. The site's log says more."""
    try:
        take_list(kit, revoked.encode())
        check_kit(kit)
        check_patiently(kit)
    except FederationError as e:
        log.error("%s takes no part in this job: %s", kit.party, e)
        return "caller"
    if version != (mine := installed("motet")):
        log.error("%s runs motet %s, and the server %.40r", kit.party, mine, version)
        return f"version: this site runs motet {mine}, and the server another"
    return ""


def check_patiently(kit: Kit, seconds: float = _GLITCH) -> None:
    """A server that brought a job can be reached; if it cannot for so long, it is not believed."""
    until = time.monotonic() + seconds
    while True:
        try:
            check_server(kit)
            return
        except Unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


# ---- the sites', at the server ----


def write_peers(kit: Path, peers: dict[str, Peer]) -> None:
    write_atomically(kit / _PEERS, msgspec.json.encode(peers), private=True)


def read_peers(kit: Kit) -> dict[str, Peer]:
    try:
        return msgspec.json.decode((kit.folder / _PEERS).read_bytes(), type=dict[str, Peer])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def unfit_sites(kit: Kit, now: datetime | None = None) -> dict[str, str]:
    """Sites whose certificate, as last seen, is not good any more, and why."""
    now, gone, found = now or datetime.now(UTC), list_of(kit), {}
    for site, peer in read_peers(kit).items():
        ends = datetime.fromisoformat(peer.ends)
        if entry := gone.of(int(peer.serial, 16)):
            found[site] = f"its certificate was revoked on {entry.when:%Y-%m-%d}"
        elif now > ends:
            found[site] = f"its certificate expired on {ends:%Y-%m-%d}"
    return found


def ending_soon(kit: Kit, now: datetime | None = None) -> list[str]:
    """Warnings of sites' certificates, as last seen, that end within the next weeks."""
    now = now or datetime.now(UTC)
    ends = {site: datetime.fromisoformat(peer.ends) for site, peer in sorted(read_peers(kit).items())}
    return [
        f"warning: the certificate of {site} ends on {last:%Y-%m-%d}, in {(last - now).days} days"
        for site, last in ends.items()
        if now <= last and last - now < SOON
    ]
