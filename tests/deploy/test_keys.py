"""Keys and certificates: who makes them, who signs them, and what is said when one is not good."""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from motet.cli.main import main
from motet.deploy.flare import certificates as certs
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.authority import LIST, Authority, SignedAnswer, found_authority, open_authority
from motet.deploy.flare.credentials import Peer, check_kit, ending_soon, unfit_sites, write_peers
from motet.deploy.flare.key_requests import accept, make_request, take_list
from motet.deploy.flare.kits import FederationError, Kit, check_host, open_kit

NOW = datetime.now(UTC)


@pytest.fixture
def care(tmp_path: Path) -> Authority:
    return found_authority("care", "localhost", tmp_path / "care", 18002)


def joined(care: Authority, place: Path, party: str = "west", days: int = 730) -> Kit:
    """A party's kit, made of its own request and the signed answer."""
    return accept(place, care.sign(make_request(party, place).read_bytes(), days))


def private_keys(folder: Path) -> Iterator[Path]:
    return (p for p in folder.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes())


def aged(care: Authority, kit: Kit, begins: datetime, days: int) -> None:
    """Give a kit's key a certificate of another time."""
    key = certs.read_key((kit.startup / "client.key").read_bytes()).public_key()
    made = care.issue(kit.party, key, days, begins)
    (kit.startup / "client.crt").write_bytes(certs.certificate_pem(made))


# ---- who holds what ----


def test_with_requests_the_convener_holds_no_private_key_but_the_roots(tmp_path: Path) -> None:
    care, say = tmp_path / "care", ["--to", str(tmp_path / "care")]
    assert main(["federation", "create", "--name", "care", "--server", "localhost", "--no-server", *say]) == 0
    for party in ("west", "server"):
        kit = tmp_path / "own" / party
        assert main(["federation", "request", party, "--to", str(kit)]) == 0
        request = kit / "requested" / f"{party}.request"
        assert main(["federation", "sign", str(care), str(request)]) == 0
        assert main(["federation", "accept", str(kit), str(care / f"{party}.signed")]) == 0
        assert check_kit(open_kit(kit)) == []
        assert not (kit / "requested").exists()
    assert list(private_keys(care)) == [care / "authority" / "root.key"]
    assert {p.name for p in private_keys(tmp_path / "own")} == {"client.key", "server.key"}


def test_the_help_of_the_one_command_way_says_that_keys_are_made_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in ("create", "add", "demo"):
        with pytest.raises(SystemExit):
            main(["federation", command, "--help"])
        assert "private keys" in " ".join(capsys.readouterr().out.lower().split())


def test_kits_are_for_their_owner_alone(tmp_path: Path) -> None:
    create("care", "localhost", ["a"], tmp_path / "care", 18002)
    make_request("b", tmp_path / "b")
    for folder in (*(tmp_path / "care").iterdir(), tmp_path / "b"):
        modes = {stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("*"))}
        assert modes <= {0o600, 0o700}, folder


def test_what_a_command_of_a_federation_writes_is_for_its_owner_alone(tmp_path: Path) -> None:
    made = tmp_path / "new" / "care"
    assert main(["federation", "create", "--name", "care", "--server", "localhost", "--to", str(made)]) == 0
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_connections_between_processes_of_one_party_need_its_certificate(
    care: Authority, tmp_path: Path
) -> None:
    kit = joined(care, tmp_path / "west")
    ways = (kit.folder / "local" / "comm_config.json").read_text()
    assert '"connection_security": "mtls"' in ways  # test_real_processes.py tries to get in


# ---- what is signed ----


def test_of_a_request_nothing_but_name_and_key_is_believed(care: Authority) -> None:
    key = certs.make_key()
    greedy = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "west"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "server"),
            x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, "project_admin"),
        ]
    )
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(greedy)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    answer = care.sign(request.public_bytes(serialization.Encoding.PEM))
    made = certs.read_certificate(answer.certificates["west"].encode())
    assert made.subject.rfc4514_string() == "O=west,CN=west"
    kinds = {type(e.value) for e in made.extensions}
    assert x509.BasicConstraints not in kinds
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["west"]


@pytest.mark.parametrize("name", ["localhost", "owner", "server", "../west", "*"])
def test_no_site_gets_a_certificate_with_the_servers_or_the_owners_name(care: Authority, name: str) -> None:
    with pytest.raises(FederationError):
        care.sign(certs.request_pem(certs.make_key(), name))
    assert not list((care.own / "issued").iterdir())


def test_a_request_with_another_kind_of_key_or_a_broken_signature_is_refused(care: Authority) -> None:
    small, curve = certs.make_key(1024), ec.generate_private_key(ec.SECP256R1())
    west = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "west")])
    other = x509.CertificateSigningRequestBuilder().subject_name(west).sign(curve, hashes.SHA256())
    for pem in (certs.request_pem(small, "west"), other.public_bytes(serialization.Encoding.PEM), b"x"):
        with pytest.raises(FederationError, match="request"):
            care.sign(pem)


def test_another_key_for_a_known_name_needs_the_conveners_word_and_revokes_the_old_one(
    care: Authority, tmp_path: Path
) -> None:
    west = joined(care, tmp_path / "west")
    thief = make_request("west", tmp_path / "thief").read_bytes()
    with pytest.raises(FederationError, match="for another key"):
        care.sign(thief)
    request = make_request("west", west.folder).read_bytes()  # a new key, in the kit that is in use
    check_kit(west)  # which stays good until the answer is accepted
    accept(west.folder, care.sign(request, replace=True))
    assert check_kit(west) == []
    first, second = care.issued("west")
    assert care.revoked().of(first.serial_number) and not care.revoked().of(second.serial_number)


# ---- what is accepted ----


def test_an_answer_for_another_key_or_of_another_root_is_refused(care: Authority, tmp_path: Path) -> None:
    west, other = joined(care, tmp_path / "west"), found_authority("care", "localhost", tmp_path / "other")
    answer = care.renew("west")
    with pytest.raises(FederationError, match="another key"):
        make_request("west", tmp_path / "elsewhere")
        accept(tmp_path / "elsewhere", answer)
    forged = other.sign(make_request("west", west.folder).read_bytes())
    with pytest.raises(FederationError, match="another authority"):
        accept(west.folder, forged)
    mixed = SignedAnswer("care", "west", "localhost", 1, forged.root, answer.certificates, forged.revoked)
    with pytest.raises(FederationError, match="its root signed"):
        accept(tmp_path / "elsewhere", mixed)
    assert check_kit(west) == []


@pytest.mark.parametrize("host", ["", "a b", "host:1", '"}', "x" * 65])
def test_an_address_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(FederationError, match="cannot be the server's address"):
        check_host(host, [])


def test_a_list_of_another_authority_is_refused_and_an_older_one_left(
    care: Authority, tmp_path: Path
) -> None:
    west, older = joined(care, tmp_path / "west"), (care.own / LIST).read_bytes()
    joined(care, tmp_path / "east", "east")
    care.revoke("east")
    assert take_list(west, (care.own / LIST).read_bytes())
    assert not take_list(west, older)
    other = found_authority("care", "localhost", tmp_path / "other")
    with pytest.raises(FederationError, match="signed by another authority"):
        take_list(west, (other.own / LIST).read_bytes())


def test_a_renewed_kit_keeps_identity_data_and_what_the_site_stores(care: Authority, tmp_path: Path) -> None:
    west = joined(care, tmp_path / "west", days=10)
    for name in ("key", "data.json", "policy.toml", "kept/ledger.tsv"):
        (west.folder / name).parent.mkdir(exist_ok=True)
        (west.folder / name).write_text(name)
    key = (west.startup / "client.key").read_bytes()
    assert "in 9 days" in check_kit(west)[0]
    answer = care.renew("west")
    assert accept(west.folder, answer) == west
    assert check_kit(west) == []
    assert (west.startup / "client.key").read_bytes() == key
    assert all(
        (west.folder / n).read_text() == n for n in ("key", "data.json", "policy.toml", "kept/ledger.tsv")
    )


# ---- what is said, and when ----


def test_each_certificate_that_is_not_good_has_its_own_message_at_once(
    care: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, tuple[str, float]] = {}

    def message(case: str, kit: Kit) -> None:
        began = time.monotonic()
        assert main(["federation", "join", str(kit.folder)]) == 2
        found[case] = capsys.readouterr().err, time.monotonic() - began

    for case, begins in (("expired", NOW - timedelta(days=20)), ("not yet", NOW + timedelta(days=20))):
        kit = joined(care, tmp_path / case, case.split()[0])
        aged(care, kit, begins, 10)
        message(case, kit)
    kit = joined(care, tmp_path / "gone", "gone")
    care.revoke("gone")
    take_list(kit, (care.own / LIST).read_bytes())
    message("revoked", kit)
    kit = joined(care, tmp_path / "west")
    foreign = joined(found_authority("care", "localhost", tmp_path / "other"), tmp_path / "foreign")
    for name in ("client.crt", "client.key"):
        (kit.startup / name).write_bytes((foreign.startup / name).read_bytes())
    message("another federation's", kit)

    said = {case: text for case, (text, _) in found.items()}
    ended = NOW - timedelta(days=10)
    assert f"the certificate of expired expired on {ended:%Y-%m-%d}" in said["expired"]
    assert "the certificate of not is not valid before" in said["not yet"]
    assert f"the certificate of gone was revoked on {NOW:%Y-%m-%d}" in said["revoked"]
    assert "the certificate of west is of another federation" in said["another federation's"]
    print({case: round(seconds, 2) for case, (_, seconds) in found.items()})
    assert max(seconds for _, seconds in found.values()) < 5


def test_a_certificate_that_ends_within_30_days_is_a_warning_and_an_ended_root_an_error(
    care: Authority, tmp_path: Path
) -> None:
    west = joined(care, tmp_path / "west")
    assert check_kit(west, NOW + timedelta(days=699)) == []
    (line,) = check_kit(west, NOW + timedelta(days=715))
    assert line.startswith("warning: the certificate of west ends on") and "renew" in line
    with pytest.raises(FederationError, match="the root of care expired on"):
        check_kit(west, NOW + timedelta(days=3651))


def test_status_warns_and_an_expired_server_says_so_in_serve_status_and_run(
    care: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = joined(care, tmp_path / "server", "server", days=10)
    assert main(["federation", "status", str(server.folder)]) == 0
    shown = capsys.readouterr().out
    assert "localhost:18002: down" in shown
    assert "warning: the certificate of server ends on" in shown and "the certificate of owner ends" in shown
    old = care.issue("server", certs.public_key(care.issued("server")[0]), 10, NOW - timedelta(days=20))
    (server.startup / "server.crt").write_bytes(certs.certificate_pem(old))
    for words in (["serve"], ["status"], ["run", "--patience", "60"]):
        assert main(["federation", words[0], str(server.folder), *words[1:]]) == 2
        assert "error: the certificate of server expired on" in capsys.readouterr().err


def test_a_kit_without_a_signed_certificate_or_with_another_key_says_so(
    care: Authority, tmp_path: Path
) -> None:
    make_request("east", tmp_path / "east")
    with pytest.raises(FederationError, match="its request waits to be signed"):
        open_kit(tmp_path / "east")
    west = joined(care, tmp_path / "west")
    (west.startup / "client.key").write_bytes(certs.key_pem(certs.make_key()))
    with pytest.raises(FederationError, match="is not the one of its certificate"):
        check_kit(west)


def test_no_certificate_outlives_the_root(tmp_path: Path) -> None:
    short = found_authority("care", "localhost", tmp_path / "care", root_days=100)
    west = joined(short, tmp_path / "west")
    made = certs.read_certificate((west.startup / "client.crt").read_bytes())
    assert made.not_valid_after_utc == open_authority(tmp_path / "care").signer.root.not_valid_after_utc


def test_a_revoked_party_is_not_renewed_and_an_unknown_one_has_nothing_to_revoke(
    care: Authority, tmp_path: Path
) -> None:
    joined(care, tmp_path / "west")
    assert care.revoke("west") == 1 and care.revoke("west") == 0
    with pytest.raises(FederationError, match="was revoked"):
        care.renew("west")
    for name in ("east", "*", "../west"):
        with pytest.raises(FederationError, match="has no certificate"):
            care.revoke(name)


def test_the_server_knows_whose_certificate_is_not_good_any_more(care: Authority, tmp_path: Path) -> None:
    server = joined(care, tmp_path / "server", "server")
    for site in ("north", "south", "west"):
        joined(care, tmp_path / site, site)
    made = {s: care.issued(s)[-1] for s in ("north", "south", "west")}
    seen = {s: Peer(f"{c.serial_number:X}", c.not_valid_after_utc.isoformat()) for s, c in made.items()}
    ended = seen["south"].serial, (NOW - timedelta(days=1)).isoformat()
    write_peers(server.folder, seen | {"south": Peer(*ended)})
    care.revoke("west")
    take_list(server, (care.own / LIST).read_bytes())
    unfit = unfit_sites(server)
    assert set(unfit) == {"south", "west"} and "revoked" in unfit["west"] and "expired" in unfit["south"]
    assert "the certificate of north ends on" in ending_soon(server, NOW + timedelta(days=710))[0]
