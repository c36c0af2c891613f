"""What server and sites find out about each other in a TLS handshake, without FLARE's processes.

A small server listens with the TLS context that FLARE's own function makes for a kit, with the list of revoked
certificates in it, as deploy/flare/party_process.py has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from cryptography import x509

pytest.importorskip("nvflare", reason="federations need the extra motet[flare]")

from nvflare.fuel.f3.drivers.net_utils import get_ssl_context

from motet.deploy.demo import free_port
from motet.deploy.flare import certificates as certs
from motet.deploy.flare import credentials
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.authority import LIST, Authority, open_authority
from motet.deploy.flare.credentials import (
    Unreachable,
    check_patiently,
    check_server,
    list_of,
    objection_to_job,
    read_peers,
    shake_hands,
)
from motet.deploy.flare.key_requests import accept, take_list
from motet.deploy.flare.kits import FederationError, Kit, open_kit
from motet.deploy.flare.party_process import PeerCheck


class Care:
    """A federation of a server and a site."""

    def __init__(self, folder: Path) -> None:
        self.authority: Authority = open_authority(folder)
        self.server, self.west = open_kit(folder / "server"), open_kit(folder / "west")

    def revoke(self, party: str, *tell: Kit) -> None:
        self.authority.revoke(party)
        for kit in tell:
            take_list(kit, (self.authority.own / LIST).read_bytes())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two federations of the same name and address, made once."""
    place, port = tmp_path_factory.mktemp("made"), free_port()
    for name in ("care", "other"):
        create("care", "localhost", ["west"], place / name, port)
    return place


@pytest.fixture
def care(made: Path, tmp_path: Path) -> Care:
    return Care(shutil.copytree(made / "care", tmp_path / "care"))


@contextlib.contextmanager
def serving(kit: Kit) -> Iterator[None]:
    """Answers every byte with one, over TLS."""
    files = {
        n: str(kit.startup / f) for n, f in (("server_cert", "server.crt"), ("server_key", "server.key"))
    }
    params = files | {"ca_cert": str(kit.startup / "rootCA.pem"), "secure": True, "scheme": "https"}
    context = PeerCheck(kit).checked(get_ssl_context)(params, True)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(64):
                writer.write(b"H")
                await writer.drain()

    async def serve() -> None:
        async with await asyncio.start_server(echo, "localhost", kit.port, ssl=context):
            ready.set()
            await over.wait()

    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    thread = threading.Thread(target=loop.run_until_complete, args=[serve()], daemon=True)
    thread.start()
    assert ready.wait(30), "the server does not listen"
    try:
        yield
    finally:  # a test that fails must not keep the port
        loop.call_soon_threadsafe(over.set)
        thread.join(30)


def reissue(care: Care, party: str, begins: datetime, days: int) -> None:
    """New certificates for a party's keys, of another time."""
    kit = care.server if party == "server" else care.west
    named = {"server": kit.startup / "server.crt"} if kit.is_server else {party: kit.startup / "client.crt"}
    for name, file in named.items():
        key = certs.public_key(certs.read_certificate(file.read_bytes()))
        file.write_bytes(certs.certificate_pem(care.authority.issue(name, key, days, begins)))


def test_a_site_and_its_server_find_each_other_good(care: Care) -> None:
    with serving(care.server):
        assert check_server(care.west) == []
        assert check_server(care.server) == []  # as the owner
    seen = read_peers(care.server)
    assert set(seen) == {"west"}
    assert int(seen["west"].serial, 16) == care.authority.issued("west")[0].serial_number


def test_a_revoked_site_is_refused_with_the_reason_and_a_renewed_one_let_in(care: Care) -> None:
    with serving(care.server):
        assert check_server(care.west) == []
        care.revoke("west", care.server)
        refused(care.west, "the server at localhost:.* refuses the certificate of west: it was revoked")
        new = care.west.folder / "requested"
        new.mkdir()
        (new / "west.key").write_bytes(certs.key_pem(key := certs.make_key()))
        accept(care.west.folder, care.authority.sign(certs.request_pem(key, "west"), replace=True))
        take_list(care.server, (care.authority.own / LIST).read_bytes())
        assert check_server(care.west) == []


def test_lists_of_one_second_are_newer_one_after_the_other(care: Care) -> None:
    signer = care.authority.signer
    found = [x509.load_pem_x509_crl(certs.list_pem(signer, (), n)).last_update_utc for n in (1, 2, 3)]
    assert found[0] < found[1] < found[2] < datetime.now(UTC)


def test_a_reason_that_is_lost_behind_what_was_sent_is_asked_for_again(
    care: Care, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may close before it reads our question; its reason is then lost with the connection."""
    honest, asked = credentials.refusal_of, []

    def crossed(secure: ssl.SSLSocket, quiet: bool) -> str:
        asked.append(quiet)
        return honest(secure, quiet) if quiet else "it gives no reason"

    monkeypatch.setattr(credentials, "refusal_of", crossed)
    with serving(care.server):
        care.revoke("west", care.server)
        refused(care.west, "refuses the certificate of west: it was revoked")
    assert asked[-2:] == [False, True]


def refused(kit: Kit, message: str) -> None:
    """The server looks at its list once a second; and now and then a connection ends before its reason is read."""
    began, said = time.monotonic(), ""
    while time.monotonic() < began + 30:
        try:
            check_server(kit)
        except FederationError as e:
            said = str(e)
            if re.search(message, said):
                return
        time.sleep(0.1)
    pytest.fail(f"expected {message!r}, and it was {said!r}")


def context_of(kit: Kit) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(kit.startup / "client.crt", kit.startup / "client.key")
    return context


def answered(line: ssl.SSLSocket) -> bool:
    try:
        line.sendall(b"x")
        return line.recv(1) == b"H"
    except OSError:
        return False


def test_a_connection_that_stays_ends_when_its_certificate_is_revoked_and_is_not_resumed(care: Care) -> None:
    context, place = context_of(care.west), ("localhost", care.server.port)
    with serving(care.server):
        with socket.create_connection(place, 30) as plain, context.wrap_socket(plain) as line:
            assert answered(line)
            session = line.session  # with it a later handshake shows no certificate
            care.revoke("west", care.server)
            until = time.monotonic() + 30
            while answered(line):
                assert time.monotonic() < until, "the connection stayed for 30 s"
                time.sleep(0.1)
        with (
            socket.create_connection(place, 30) as plain,
            context.wrap_socket(plain, session=session) as again,
        ):
            assert again.session_reused and not answered(again)


@pytest.mark.parametrize(
    ("begins", "message"),
    [(-20, "the certificate of the server at localhost:.* expired on"), (20, "is not valid before")],
)
def test_a_server_whose_certificate_is_not_valid_today_is_named(
    care: Care, begins: int, message: str
) -> None:
    reissue(care, "server", datetime.now(UTC) + timedelta(days=begins), 10)
    with serving(care.server), pytest.raises(FederationError, match=message):
        check_server(care.west)


def test_a_site_whose_certificate_expired_by_the_servers_clock_is_refused(care: Care) -> None:
    reissue(care, "west", datetime.now(UTC) - timedelta(days=20), 10)
    with serving(care.server), pytest.raises(FederationError, match="it expired, by the server's clock"):
        check_server(care.west)


def test_a_server_of_another_federation_is_named_and_refuses_us(care: Care, made: Path) -> None:
    with serving(open_kit(made / "other" / "server")):
        with pytest.raises(
            FederationError, match="the certificate of the server .* is of another federation"
        ):
            check_server(care.west)
        assert shake_hands(care.west, "localhost", care.server.port)[1] == "it is of another federation"


def test_a_site_does_not_pass_for_the_server(care: Care) -> None:
    for ending in ("crt", "key"):
        content = (care.west.startup / f"client.{ending}").read_bytes()
        (care.server.startup / f"server.{ending}").write_bytes(content)
    with serving(care.server), pytest.raises(FederationError, match="shows the certificate of 'west'"):
        check_server(care.west)


def test_a_server_that_is_away_or_silent_is_said_within_five_seconds(care: Care) -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        check_server(care.west)
    with socket.create_server(("localhost", care.server.port)):  # takes connections, and says nothing
        began = time.monotonic()
        with pytest.raises(Unreachable, match="does not answer"):
            check_server(care.west)
        assert time.monotonic() - began < 5


# ---- at the start of a job ----


def test_a_site_checks_the_server_its_own_certificate_and_the_version_at_each_job(
    care: Care, caplog: pytest.LogCaptureFixture
) -> None:
    now, mine = (care.authority.own / LIST).read_text, version("motet")
    with serving(care.server):
        assert objection_to_job(care.west, mine, now()) == ""
        assert objection_to_job(care.west, "0.0.1", now()).startswith(f"version: this site runs motet {mine}")
        assert objection_to_job(care.west, mine, "no list") == "caller"
        care.authority.revoke("server")
        assert objection_to_job(care.west, mine, now()) == "caller"
        assert objection_to_job(care.west, mine, "x" * (2 << 20)) == "caller"
    assert list_of(care.west).number == 2  # the job brought the newer list, which stays
    assert "the certificate of the server at localhost" in caplog.text and "was revoked on" in caplog.text


def test_a_server_that_cannot_be_looked_at_is_not_believed(care: Care) -> None:
    with pytest.raises(Unreachable):
        check_patiently(care.west, seconds=0.5)


def test_a_party_whose_certificate_ends_while_it_waits_ends_with_a_word(care: Care) -> None:
    """In a process of its own, which this ends."""
    reissue(care, "west", datetime.now(UTC) - timedelta(days=20), 10)
    program = "import sys; from motet.deploy.flare.party_process import watch_own as w; "
    program += "from motet.deploy.flare.kits import open_kit as o; w(o(sys.argv[1]))"
    words = [sys.executable, "-c", program, str(care.west.folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.startswith("error: the certificate of west expired on")


def test_a_site_that_the_server_refuses_says_so(care: Care) -> None:
    """FLARE writes it into its log alone, every ten seconds."""
    program = "import sys; from motet.deploy.flare.party_process import watch_own as w; "
    program += "from motet.deploy.flare.kits import open_kit as o; w(o(sys.argv[1]), 0.2)"
    words = [sys.executable, "-c", program, str(care.west.folder)]
    with serving(care.server):
        care.revoke("west", care.server)
        refused(care.west, "it was revoked")
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as watch:
            assert watch.stderr
            try:
                assert "refuses the certificate of west: it was revoked" in watch.stderr.readline()
            finally:
                watch.kill()
