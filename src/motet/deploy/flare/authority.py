"""The authority of a federation: whoever convenes it signs certificates, renews and revokes them.

Its folder holds the root's key, a copy of every certificate that was issued, and the list of those that were
revoked. It holds no other private key: parties make their own and send a signing request.
Knows the convener's folder and the form of a signed answer. Does not know FLARE's processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import Struct

from motet.atomic import write_atomically
from motet.deploy.flare import certificates as certs
from motet.deploy.flare.certificates import Revocation, RevokedList, Signer, Subject
from motet.deploy.flare.kits import OWNER, ROLE, FederationError, check_host, check_names, key_places

DAYS, ROOT_DAYS = 730, 3650  # of parties' certificates, and of the root's
LIST = "revoked.pem"


class Plan(Struct, forbid_unknown_fields=True):
    """What a federation is: its name, where its server is, who has certificates."""

    name: str
    server: str
    port: int
    sites: list[str] = []


class SignedAnswer(Struct, forbid_unknown_fields=True):
    """What the convener sends back: certificates, and what a party's own motet makes a kit from. No key, no code."""

    federation: str
    party: str
    host: str
    port: int
    root: str
    certificates: dict[str, str]  # by whose they are: a site's name; server and owner
    revoked: str

    def write(self, file: Path) -> None:
        write_atomically(file, msgspec.json.format(msgspec.json.encode(self)) + b"\n", private=True)

    @classmethod
    def read(cls, content: bytes) -> SignedAnswer:
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.ValidationError, msgspec.DecodeError) as e:
            raise FederationError(
                f"this is no signed answer: {e}\nhint: the convener's `motet federation sign` writes NAME.signed"
            ) from e


@dataclass
class Authority:
    """The convener's folder, opened."""

    folder: Path  # with `authority` inside
    plan: Plan
    signer: Signer

    @property
    def own(self) -> Path:
        return self.folder / "authority"

    def write_plan(self) -> None:
        content = msgspec.json.format(msgspec.json.encode(self.plan))
        write_atomically(self.own / "plan.json", content + b"\n", private=True)

    # ---- certificates ----

    def subject(self, name: str) -> Subject:
        if name == "server":
            return Subject(self.plan.server, certs.SERVERS, host=self.plan.server)
        return Subject(OWNER, certs.SERVERS, ROLE) if name == "owner" else Subject(name, name)

    def issue(
        self, name: str, key: rsa.RSAPublicKey, days: int = DAYS, begins: datetime | None = None
    ) -> x509.Certificate:
        """A certificate, of which a copy stays here."""
        if self.signer.root.not_valid_after_utc <= datetime.now(UTC):
            ended = f"{self.signer.root.not_valid_after_utc:%Y-%m-%d}"
            raise FederationError(
                f"the root of {self.plan.name} expired on {ended}\nhint: create the federation anew"
            )
        made = certs.issue(self.signer, self.subject(name), key, days, begins)
        number = len(list((self.own / "issued").iterdir())) + 1
        file = self.own / "issued" / f"{number:05d}-{name}.crt"
        write_atomically(file, certs.certificate_pem(made), private=True)
        return made

    def issued(self, name: str) -> list[x509.Certificate]:
        """All certificates of a name so far, the newest last."""
        files = sorted((self.own / "issued").glob(f"?????-{name}.crt"))
        return [certs.read_certificate(f.read_bytes()) for f in files]

    def revoked(self) -> RevokedList:
        return certs.read_list((self.own / LIST).read_bytes(), self.signer.root)

    def answer(self, party: str, found: dict[str, x509.Certificate]) -> SignedAnswer:
        pems = {name: certs.certificate_pem(c).decode() for name, c in found.items()}
        root, listed = certs.certificate_pem(self.signer.root).decode(), (self.own / LIST).read_text()
        plan = self.plan
        return SignedAnswer(plan.name, party, plan.server, plan.port, root, pems, listed)

    # ---- what a convener does ----

    def sign(self, pem: bytes, days: int = DAYS, replace: bool = False) -> SignedAnswer:
        """Certificates for a party's requests; a name keeps its key, unless `replace` says otherwise."""
        keys = certs.read_requests(pem)
        party = self.party_of(set(keys))
        for name, key in keys.items():
            self.check_key(name, key, replace)
        if replace:
            self.revoke(party)
        found = {name: self.issue(name, key, days) for name, key in keys.items()}
        if party != "server" and party not in self.plan.sites:
            self.plan.sites.append(party)
            self.write_plan()
        return self.answer(party, found)

    def party_of(self, names: set[str]) -> str:
        """Who sends requests with these names."""
        if names == set(key_places("server")):
            return "server"
        if len(names) != 1:
            raise FederationError(f"a file with requests of {', '.join(sorted(names))} is nobody's")
        check_names([*names])
        check_host(self.plan.server, [*names])
        return names.pop()

    def check_key(self, name: str, key: rsa.RSAPublicKey, replace: bool) -> None:
        """Whether this key may be the name's."""
        gone, before = self.revoked(), self.issued(name)
        same = [c for c in before if certs.public_key(c) == key]
        if any(gone.of(c.serial_number) for c in same):
            raise FederationError(
                f"this key of {name} was revoked\nhint: a new key: motet federation request {name} --to KIT, "
                "then sign --replace"
            )
        if before and not same and not replace:
            raise FederationError(
                f"{name} has a certificate for another key, {certs.fingerprint(certs.public_key(before[-1]))}; "
                f"this request has {certs.fingerprint(key)}\n"
                f"hint: ask {name} on a channel you trust; if it wants a new key, --replace revokes the old one"
            )

    def renew(self, party: str, days: int = DAYS) -> SignedAnswer:
        """New certificates for the keys that a party has; nothing else of it changes."""
        self.require_known(party)
        gone, found = self.revoked(), {}
        for name in key_places(party):
            before = self.issued(name)
            if gone.of(before[-1].serial_number):
                raise FederationError(
                    f"the key of {name} was revoked\nhint: a new key: motet federation request {party} --to KIT, "
                    "then sign --replace"
                )
            found[name] = self.issue(name, certs.public_key(before[-1]), days)
        return self.answer(party, found)

    def revoke(self, party: str) -> int:
        """Put all certificates of a party on the list; how many are new there."""
        self.require_known(party)
        old = self.revoked()
        held = [(n, c) for n in key_places(party) for c in self.issued(n) if not old.of(c.serial_number)]
        now = datetime.now(UTC).replace(microsecond=0)
        new = tuple(Revocation(c.serial_number, name, now) for name, c in held)
        if new:
            self.write_list((*old.entries, *new), old.number + 1)
        return len(new)

    def require_known(self, party: str) -> None:
        known = [*(["server"] if self.issued("server") else []), *self.plan.sites]
        if party not in known:
            raise FederationError(
                f"{party} has no certificate of {self.plan.name}; these have: {', '.join(known) or 'none'}"
            )

    def write_list(self, entries: tuple[Revocation, ...], number: int) -> None:
        write_atomically(self.own / LIST, certs.list_pem(self.signer, entries, number), private=True)


def open_authority(folder: Path) -> Authority:
    """What `create` wrote."""
    own = folder / "authority"
    if not (own / "root.key").is_file():
        raise FederationError(
            f"{folder} holds no authority of a federation\nhint: motet federation create --to {folder}"
        )
    plan = msgspec.json.decode((own / "plan.json").read_bytes(), type=Plan)
    root = certs.read_certificate((own / "root.crt").read_bytes())
    return Authority(folder, plan, Signer(root, certs.read_key((own / "root.key").read_bytes())))


def found_authority(
    name: str, server: str, to: Path, port: int = 8002, root_days: int = ROOT_DAYS
) -> Authority:
    """A new authority; a folder that holds one already is left alone."""
    check_names([name])
    check_host(server, [], port)
    if (to / "authority").exists():
        raise FederationError(
            f"{to} holds a federation already\nhint: `motet federation sign {to} REQUEST` lets newcomers in; with "
            "another --to, or after deleting it, all certificates are new and old ones are refused"
        )
    (to / "authority").mkdir(parents=True, mode=0o700)
    (to / "authority" / "issued").mkdir(mode=0o700)
    made = Authority(to, Plan(name, server, port), certs.make_root(name, root_days))
    write_atomically(made.own / "root.crt", certs.certificate_pem(made.signer.root), private=True)
    made.write_plan()
    made.write_list((), 1)
    write_atomically(made.own / "root.key", certs.key_pem(made.signer.key), private=True)
    return made
